"""What is known of a request from its beginning."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from enginebay.server.requests.request_context import RequestContext


def test_it_began_when_it_was_received() -> None:
    """From there all its durations count, however late we come to look at it."""
    exchange = cast("Any", SimpleNamespace(headers={}, received=time.perf_counter() - 5, header=lambda *_: None))
    assert RequestContext(exchange, "chat", "id").started_at == pytest.approx(time.time() - 5, abs=2)
