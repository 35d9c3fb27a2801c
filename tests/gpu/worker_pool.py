"""Workers that load in parallel: a load on a GPU host takes most of a minute."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from enginebay.errors import EnginebayError
from enginebay.fleet.lifecycle.model_worker import ModelWorker
from enginebay.fleet.lifecycle.worker_logs import read_last_lines
from enginebay.util.paths import logs_dir
from tests.contract.conftest import open_worker
from tests.contract.engine_profiles import PROFILES, EngineProfile
from tests.contract.lora_adapters import make_adapter

LOAD_S = float(os.environ.get("ENGINEBAY_TEST_LOAD_S", "600"))
WANTED = os.environ.get("ENGINEBAY_TEST_SETUPS", "").split()  # empty: all
_SHOWN_LINES = 40


@dataclass(frozen=True)
class WorkerSetup:
    """One worker: settings on top of the engine's base settings."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    lora: bool = False
    task: str = "generate"


class WorkerPool:
    """Loads workers in parallel; `get` waits for one of them. Writes the facts of each load beside its log."""

    def __init__(self, kind: str, base: Mapping[str, Any], setups: Mapping[str, WorkerSetup], folder: Path) -> None:
        self._profile = EngineProfile(kind, kind, PROFILES[kind].model, base)
        self._folder = folder
        selected = {name: setup for name, setup in setups.items() if not WANTED or name in WANTED}
        self._loading = {name: asyncio.create_task(self._open(name, setup)) for name, setup in selected.items()}

    def log(self, name: str) -> Path:
        return logs_dir() / f"gpu-{self._profile.kind}-{name}.log"

    async def get(self, name: str) -> ModelWorker:
        """Return the worker. If it did not load, fail the test with the end of its log."""
        try:
            return await self.wait_loaded(name)
        except (EnginebayError, TimeoutError) as error:
            tail = "\n".join(read_last_lines(self.log(name), _SHOWN_LINES))
            message = f"{name} did not load: {type(error).__name__}: {error}\n--- {self.log(name)}\n{tail}"
            pytest.fail(message, pytrace=False)

    async def wait_loaded(self, name: str) -> ModelWorker:
        """Return the worker, or raise its load error."""
        if name not in self._loading:
            pytest.skip(f"{name} is not among ENGINEBAY_TEST_SETUPS")
        return await asyncio.shield(self._loading[name])

    async def close(self) -> None:
        for task in self._loading.values():
            task.cancel()
        opened = await asyncio.gather(*self._loading.values(), return_exceptions=True)
        await asyncio.gather(
            *(worker.close() for worker in opened if isinstance(worker, ModelWorker)), return_exceptions=True
        )

    async def _open(self, name: str, setup: WorkerSetup) -> ModelWorker:
        loras = {}
        if setup.lora:
            loras[self._profile.lora] = await asyncio.to_thread(make_adapter, self._profile.kind, self._folder / name)
        self.log(name).unlink(missing_ok=True)
        opening = open_worker(self._profile, loras, setup.task, log=self.log(name), **setup.settings)
        started = time.monotonic()
        worker = await asyncio.wait_for(opening, LOAD_S)
        self._log_load(name, worker, time.monotonic() - started)
        return worker

    def _log_load(self, name: str, worker: ModelWorker, seconds: float) -> None:
        facts = worker.facts
        entry = {
            "worker": f"{self._profile.kind} {name}", "seconds": round(seconds, 1), "phases": dict(facts.phases),
            "memory_bytes": facts.memory_bytes, "warnings": list(facts.warnings), "effective": dict(facts.effective),
        }  # fmt: skip
        with contextlib.suppress(OSError), (logs_dir() / "gpu-workers.jsonl").open("a") as file:
            file.write(json.dumps(entry, default=str) + "\n")
