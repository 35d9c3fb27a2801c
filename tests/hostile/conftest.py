"""One server per engine for the whole suite."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest

from tests.hostile.hostile_case import HostileCase
from tests.hostile.site_keeper import SiteKeeper

ENGINES = ("fake", "llamacpp", "transformers", "vllm")


@pytest.fixture(scope="session", params=ENGINES)
def keeper(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SiteKeeper]:
    engine = request.param
    cases = list_selected_cases(request.session.items, engine)
    found = SiteKeeper(engine, tmp_path_factory.mktemp(f"hostile-{engine}"), cases)
    yield found
    found.close()


def list_selected_cases(items: Iterable[pytest.Item], engine: str) -> list[HostileCase]:
    """The cases that this run sends to the engine."""
    calls = [item.callspec.params for item in items if hasattr(item, "callspec")]
    return [params["case"] for params in calls if params.get("keeper") == engine and "case" in params]
