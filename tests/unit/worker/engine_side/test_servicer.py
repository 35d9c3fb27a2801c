from __future__ import annotations

from typing import Any

import pytest

from enginebay.contract import Stats
from enginebay.worker.engine_side.request_table import RequestTable
from enginebay.worker.engine_side.servicer import WorkerServicer
from enginebay.worker.proto import worker_pb2 as pb


class Quiet:
    """An engine of a third party, which knows nothing of stats."""

    def running(self) -> int:
        return 3


class Telling(Quiet):
    def __init__(self, stats: Stats | Exception) -> None:
        self._stats = stats

    def stats(self) -> Stats:
        if isinstance(self._stats, Exception):
            raise self._stats
        return self._stats


def _state(engine: Any) -> pb.StateReply:
    ledger = RequestTable(engine)
    ledger.flush()
    reply = WorkerServicer(engine, ledger).state(pb.StateRequest(), None)
    return pb.StateReply.FromString(reply.SerializeToString())  # as it arrives


def _known(reply: pb.StateReply) -> dict[str, Any]:
    return {name: getattr(reply, name) for name in ("steps", "kv_used_ratio", "waiting") if reply.HasField(name)}


def test_the_engines_numbers_travel() -> None:
    reply = _state(Telling(Stats(2**40, 0.25, 7)))
    assert _known(reply) == {"steps": 2**40, "kv_used_ratio": 0.25, "waiting": 7}
    assert (reply.running, reply.flushes) == (3, 1)
    assert reply.memory_bytes > 0


def test_zero_is_a_number_and_unknown_is_none() -> None:
    assert _known(_state(Telling(Stats(0, None, 0)))) == {"steps": 0, "waiting": 0}


@pytest.mark.parametrize("engine", [Quiet(), Telling(RuntimeError("closed"))])
def test_an_engine_that_cannot_tell_is_still_alive(engine: Any) -> None:
    reply = _state(engine)
    assert reply.running == 3 and _known(reply) == {}


def test_an_older_worker_says_nothing_of_it() -> None:
    old = b"\x08\x03"  # running = 3, before there were the other fields
    assert _known(pb.StateReply.FromString(old)) == {}
