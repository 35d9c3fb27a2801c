from __future__ import annotations

from typing import Any

import pytest

from enginebay.contract import Stats
from enginebay.worker.engine_side.request_table import RequestTable
from enginebay.worker.engine_side.servicer import WorkerServicer
from enginebay.worker.proto import worker_pb2 as pb


class WithoutStats:
    """A third-party engine without stats."""

    def running(self) -> int:
        return 3


class WithStats(WithoutStats):
    def __init__(self, stats: Stats | Exception) -> None:
        self._stats = stats

    def stats(self) -> Stats:
        if isinstance(self._stats, Exception):
            raise self._stats
        return self._stats


def _state(engine: Any) -> pb.StateReply:
    requests = RequestTable(engine)
    requests.flush()
    reply = WorkerServicer(engine, requests).state(pb.StateRequest(), None)
    return pb.StateReply.FromString(reply.SerializeToString())  # as received


def _known(reply: pb.StateReply) -> dict[str, Any]:
    return {name: getattr(reply, name) for name in ("steps", "kv_used_ratio", "waiting") if reply.HasField(name)}


def test_engine_stats_are_reported() -> None:
    reply = _state(WithStats(Stats(2**40, 0.25, 7)))
    assert _known(reply) == {"steps": 2**40, "kv_used_ratio": 0.25, "waiting": 7}
    assert (reply.running, reply.flushes) == (3, 1)
    assert reply.memory_bytes > 0


def test_zero_is_reported_and_unknown_is_unset() -> None:
    assert _known(_state(WithStats(Stats(0, None, 0)))) == {"steps": 0, "waiting": 0}


@pytest.mark.parametrize("engine", [WithoutStats(), WithStats(RuntimeError("closed"))])
def test_an_engine_without_stats_is_still_alive(engine: Any) -> None:
    reply = _state(engine)
    assert reply.running == 3 and _known(reply) == {}


def test_an_older_worker_reports_no_stats() -> None:
    old = b"\x08\x03"  # running = 3, without the newer fields
    assert _known(pb.StateReply.FromString(old)) == {}
