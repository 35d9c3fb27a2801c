"""Workers of the contract suite: one per profile, shared by all its tests, because a load can take a minute."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from enginebay import environments
from enginebay.config.loader import load_config
from enginebay.errors import EngineMissing, UnknownEngine
from enginebay.fleet.lifecycle.launch_plan import make_launch_plan
from enginebay.fleet.lifecycle.model_worker import ModelWorker
from tests.contract.engine_profiles import PROFILES, EngineProfile, is_on_cuda
from tests.contract.lora_adapters import make_adapter


async def open_worker(
    profile: EngineProfile,
    loras: dict[str, str] | None = None,
    task: str = "generate",
    model: str | None = None,
    log: Path | None = None,
    **settings: Any,
) -> ModelWorker:
    """Start a worker as the product does, with adapters and optionally its own log."""
    config = load_config(None, environ={})
    merged = {**profile.settings, **settings}
    plan = make_launch_plan(model or profile.model, engine=profile.kind, config=config, settings=merged, task=task)
    load = replace(plan.launch.load, loras=loras or {})
    launch = replace(plan.launch, load=load, log=log or plan.launch.log)
    return await ModelWorker.start(replace(plan, launch=launch))


@pytest.fixture(scope="session", params=list(PROFILES))
def profile(request: pytest.FixtureRequest) -> EngineProfile:
    selected = PROFILES[request.param]
    if is_on_cuda():
        skip_without(selected.kind)
    return selected


def skip_without(kind: str) -> None:
    """Skip the test if the engine is missing, for hosts without network. Elsewhere that is a failure."""
    try:
        environments.find_environment(kind)
    except (EngineMissing, UnknownEngine) as missing:
        pytest.skip(missing.message)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def worker(profile: EngineProfile, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ModelWorker]:
    folder: Path = tmp_path_factory.mktemp(f"adapter-{profile.name}")
    loras = {profile.lora: make_adapter(profile.kind, folder)}
    async with await open_worker(profile, loras) as opened:
        yield opened
