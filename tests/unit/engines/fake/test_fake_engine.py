"""Sleep, memory limits and adapters of the fake engine."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from enginebay.contract import Load, SupportsLora, SupportsSleep
from enginebay.engines.fake.engine import FakeEngine
from enginebay.errors import EngineFailed, InvalidRequest, OutOfMemory


def engine(**settings: Any) -> FakeEngine:
    return FakeEngine(Load("fake", "", "toy", "", settings))


def test_sleep_and_wake_take_their_configured_time() -> None:
    fake = engine(sleep_s=0.02, wake_s=0.03)
    assert isinstance(fake, SupportsSleep)
    assert fake.facts().sleep_levels == (1, 2)
    started = time.perf_counter()
    fake.sleep(2)
    fake.wake()
    assert time.perf_counter() - started >= 0.05
    with pytest.raises(InvalidRequest):
        fake.sleep(3)


def test_a_wake_that_fails() -> None:
    fake = engine(wake_fails=True)
    fake.sleep(1)
    with pytest.raises(EngineFailed):
        fake.wake()


def test_memory_runs_out_above_a_context_length() -> None:
    with pytest.raises(OutOfMemory):
        engine(oom_above=1024)
    assert engine(oom_above=1024, context_length=1024).facts().context_length == 1024
    assert engine(memory_bytes=5).facts().memory_bytes == 5


def test_adapters_come_and_go(tmp_path: Path) -> None:
    fake = engine()
    assert isinstance(fake, SupportsLora)
    with pytest.raises(InvalidRequest):
        fake.add_lora("a", str(tmp_path / "nowhere"))
    fake.add_lora("a", str(tmp_path))
    fake.remove_lora("a")
    with pytest.raises(InvalidRequest):
        fake.remove_lora("a")
