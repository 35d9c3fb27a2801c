"""One server per engine for the whole suite. A case that breaks it gets the next case a new one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx2 as httpx
import pytest

from tests.hostile.hostile_case import HostileCase
from tests.hostile.hostile_site import HostileSite, open_site

ENGINES = ("fake", "llamacpp", "transformers", "vllm")


class SiteKeeper:
    """Keeps a server that works."""

    def __init__(self, engine: str, folder: Path) -> None:
        self.engine = engine
        self._folder = folder
        self._stack = ExitStack()
        self._site: HostileSite | None = None

    @property
    def site(self) -> HostileSite:
        if self._site is None:
            self._site = self._stack.enter_context(open_site(self.engine, self._folder))
        return self._site

    def attack(self, case: HostileCase) -> None:
        try:
            self.site.attack(case)
        except AssertionError:
            if not self._is_sound():
                self.close()
            raise

    def _is_sound(self) -> bool:
        """The same workers, and honest clients that are answered as usual again."""
        site = self.site
        try:
            if site.read_pids() != site.pids:
                return False
        except httpx.HTTPError:
            return False
        since = time.monotonic()
        time.sleep(1)
        waits = site.list_waits(since)
        return bool(waits) and max(waits) <= site.limit_s and not any(client.problems for client in site.honest)

    def close(self) -> None:
        """Stop the server. After a failure it may not stop as it should: that has been reported."""
        self._site = None
        try:
            self._stack.close()
        except AssertionError as error:
            print(f"the server did not stop: {error}")
        self._stack = ExitStack()


@pytest.fixture(scope="session", params=ENGINES)
def keeper(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SiteKeeper]:
    found = SiteKeeper(request.param, tmp_path_factory.mktemp(f"hostile-{request.param}"))
    yield found
    found.close()
