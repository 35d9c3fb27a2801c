"""A new request context."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from enginebay.server.requests.request_context import RequestContext


def test_it_starts_when_the_request_was_received() -> None:
    """All durations count from there, not from when the context was made."""
    exchange = cast("Any", SimpleNamespace(headers={}, received_at=time.perf_counter() - 5, add_header=lambda *_: None))
    assert RequestContext(exchange, "chat", "id").started_at == pytest.approx(time.time() - 5, abs=2)
