"""An offline engine that dies reports the end of its log."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from bench.gpu.large_model.turn_taking import SleepableOffline, TurnFailed
from bench.gpu.systems_under_test import OfflineVllm
from enginebay.lab.workload.request_records import Request

_ANSWERS_ONCE = """
import sys
print("ready", flush=True)
sys.stdin.readline()
print('{"ended": 1}', flush=True)
sys.stdin.readline()
print('{"half', end="", flush=True)
sys.exit("out of memory")
"""


class _Dies(OfflineVllm):
    def build_command(self) -> Sequence[str]:
        return [sys.executable, "-c", _ANSWERS_ONCE]


class _DiesInTurns(_Dies, SleepableOffline):
    pass


@pytest.fixture(params=[(_Dies, SystemExit), (_DiesInTurns, TurnFailed)], ids=["alone", "in turns"])
def dying(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[OfflineVllm, type[BaseException]]]:
    kind, failure = request.param
    system = kind("offline", tmp_path, {}, tmp_path)
    system.wait_ready()
    yield system, failure
    system.stop()


def test_a_dead_engine_reports_the_end_of_its_log_every_time(
    dying: tuple[OfflineVllm, type[BaseException]],
) -> None:
    system, failure = dying
    requests = [Request((1, 2), 2, 4)]
    assert system.run(requests, 4, 1) == {"ended": 1}
    for _ in range(2):
        with pytest.raises(failure, match=r"offline died during prompts, tokens, streams:\nout of memory"):
            system.run(requests, 4, 1)
        system.process.wait(10)
