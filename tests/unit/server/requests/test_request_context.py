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


@pytest.mark.parametrize("takes_comments", [True, False])
def test_comments_are_for_server_sent_events_only(takes_comments: bool) -> None:
    written: list[bytes] = []
    exchange: Any = SimpleNamespace(
        headers={},
        received_at=0.0,
        started=False,
        add_header=lambda *_: None,
        start=lambda *_: None,
        write=written.append,
        ping=lambda: written.append(b"ping"),
    )
    request_context = RequestContext(exchange, "chat", "id")
    request_context.takes_comments = takes_comments
    request_context.write_comment("loading")
    assert written == [b": loading\n\n" if takes_comments else b"ping"]
    assert request_context.wait_announced == takes_comments
