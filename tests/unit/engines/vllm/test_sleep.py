"""Sleep levels and the order of a sleep, without vLLM."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from enginebay.engines.vllm.sleep import Sleeper, is_same_fingerprint, list_sleep_levels
from enginebay.errors import EngineFailed, InvalidRequest

ON = {"enable_sleep_mode": True}


@pytest.mark.parametrize(
    ("arguments", "levels"),
    [
        ({}, ()),
        ({"enable_sleep_mode": False}, ()),
        (ON, (1, 2)),
        ({**ON, "load_format": "safetensors", "cpu_offload_gb": 0}, (1, 2)),
        ({**ON, "speculative_config": {"method": "ngram"}}, (1, 2)),
        ({**ON, "speculative_config": {"model": "draft"}}, (1,)),
        ({**ON, "speculative_config": {"method": "eagle", "model": "draft"}}, (1,)),
        ({**ON, "load_format": "dummy"}, (1,)),
        ({**ON, "enable_lora": True}, (1,)),
        ({**ON, "cpu_offload_gb": 4}, (1,)),
    ],
)
def test_level_2_only_where_all_weights_are_restored(arguments: dict[str, Any], levels: tuple[int, ...]) -> None:
    assert list_sleep_levels(arguments) == levels


class Llm:
    """As much of AsyncLLM as a sleep needs; records each call."""

    def __init__(self, answers: list[list[int]] | None = None) -> None:
        self.calls: list[Any] = []
        self.answers = answers or [[1, 2, 3]] * 9

    async def reset_prefix_cache(self) -> bool:
        self.calls.append("reset")
        return True

    async def sleep(self, level: int = 1, mode: str = "abort") -> None:
        self.calls.append(("sleep", level, mode))

    async def wake_up(self, tags: list[str] | None = None) -> None:
        self.calls.append(("wake", *(tags or ())))

    async def collective_rpc(self, method: str) -> None:
        self.calls.append(method)

    async def sample(self) -> list[int]:
        self.calls.append("sample")
        return self.answers.pop(0)


class OldLlm(Llm):
    async def sleep(self, level: int = 1) -> None:  # type: ignore[override]
        self.calls.append(("sleep", level))


def test_level_1_waits_for_what_runs_and_samples_nothing() -> None:
    async def all_of_it() -> None:
        llm = Llm()
        sleeper = Sleeper(llm, (1, 2), llm.sample)
        await sleeper.sleep(1)
        assert sleeper.level == 1
        await sleeper.sleep(1)
        await sleeper.wake()
        await sleeper.wake()
        assert llm.calls == ["reset", ("sleep", 1, "wait"), ("wake",)]
        assert sleeper.level == 0

    asyncio.run(all_of_it())


def test_a_version_without_modes() -> None:
    llm = OldLlm()
    asyncio.run(Sleeper(llm, (1,), llm.sample).sleep(1))
    assert llm.calls == ["reset", ("sleep", 1)]


def test_level_2_reads_the_weights_between_the_two_memories_and_compares() -> None:
    async def all_of_it() -> None:
        llm = Llm()
        sleeper = Sleeper(llm, (1, 2), llm.sample)
        for _ in range(2):
            await sleeper.sleep(2)
            await sleeper.wake()
        back = [("wake", "weights"), "reload_weights", ("wake", "kv_cache"), "reset", "sample"]
        asleep = ["reset", ("sleep", 2, "wait")]
        assert llm.calls == ["sample", *asleep, *back, *asleep, *back]  # the first answer is asked for once

    asyncio.run(all_of_it())


def test_changed_output_after_level_2_is_a_failure() -> None:
    async def all_of_it() -> None:
        llm = Llm([[1, 2, 3], [1, 2, 4]])
        sleeper = Sleeper(llm, (1, 2), llm.sample)
        await sleeper.sleep(2)
        with pytest.raises(EngineFailed, match="output changed"):
            await sleeper.wake()

    asyncio.run(all_of_it())


def test_changing_the_level_wakes_first() -> None:
    async def all_of_it() -> None:
        llm = Llm()
        sleeper = Sleeper(llm, (1, 2), llm.sample)
        await sleeper.sleep(1)
        await sleeper.sleep(2)
        assert llm.calls[2:4] == [("wake",), "sample"]
        assert sleeper.level == 2

    asyncio.run(all_of_it())


def test_an_unavailable_level_is_refused() -> None:
    llm = Llm()
    with pytest.raises(InvalidRequest) as caught:
        asyncio.run(Sleeper(llm, (1,), llm.sample).sleep(2))
    assert "levels: 1" in caught.value.hint
    assert llm.calls == []


def test_fingerprints_may_differ_by_rounding_only() -> None:
    assert is_same_fingerprint([0.5, -0.25], [0.501, -0.25])
    assert not is_same_fingerprint([3, 4], [3, 5])
    assert not is_same_fingerprint([3, 4], [3])
