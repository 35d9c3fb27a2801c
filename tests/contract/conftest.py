"""Workers for the contract suite: one per profile, shared by all its tests, since a load can take most of a minute."""

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
    """A worker as the product starts it, with adapters on top, and a log of its own if it is to have one."""
    config = load_config(None, environ={})
    chosen = {**profile.settings, **settings}
    plan = make_launch_plan(model or profile.model, engine=profile.kind, config=config, settings=chosen, task=task)
    load = replace(plan.launch.load, loras=loras or {})
    launch = replace(plan.launch, load=load, log=log or plan.launch.log)
    return await ModelWorker.start(replace(plan, launch=launch))


@pytest.fixture(scope="session", params=list(PROFILES))
def profile(request: pytest.FixtureRequest) -> EngineProfile:
    found = PROFILES[request.param]
    if is_on_cuda():
        skip_without(found.kind)
    return found


def skip_without(kind: str) -> None:
    """For hosts where nothing can be installed: leave out what is not there. Elsewhere its absence is a failure."""
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
