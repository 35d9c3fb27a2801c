"""An engine without a server that dies says so in its own last words."""

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
sys.exit("no memory is left")
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
    system.wait()
    yield system, failure
    system.stop()


def test_one_that_dies_is_told_with_its_last_words_however_often_it_is_asked(
    dying: tuple[OfflineVllm, type[BaseException]],
) -> None:
    system, failure = dying
    asked = [Request((1, 2), 2, 4)]
    assert system.run(asked, 4, 1) == {"ended": 1}
    for _ in range(2):
        with pytest.raises(failure, match=r"offline died of prompts, tokens, streams:\nno memory is left"):
            system.run(asked, 4, 1)
        system.process.wait(10)
