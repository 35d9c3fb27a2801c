"""Keeps a server that works, and sends it the cases in waves: an engine answers several at once in little more time than one.

A request that is late or turned away beside others is sent again alone, and that answer counts. So is every request of a
wave that harmed somebody: if each of them is harmless alone, all of them fail, since together they are not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.hostile.hostile_case import HostileCase
from tests.hostile.hostile_site import HostileSite, SentCase, open_site

WAVE_SIZE = 8


class SiteKeeper:
    """A case that breaks the server gets the next case a new one."""

    def __init__(self, engine: str, folder: Path, cases: Sequence[HostileCase] = ()) -> None:
        self.engine = engine
        self._folder = folder
        self._stack = ExitStack()
        self._site: HostileSite | None = None
        self._waves = {case.name: wave for wave in split_in_waves(cases) for case in wave}
        self._failures: dict[str, AssertionError | None] = {}  # of the cases that have been sent

    @property
    def site(self) -> HostileSite:
        if self._site is None:
            self._site = self._stack.enter_context(open_site(self.engine, self._folder))
        return self._site

    def attack(self, case: HostileCase) -> None:
        """Fail if this case fails in its wave, which is sent with the first of its cases."""
        if case.name not in self._failures:
            self._failures.update(self._attack_at_once(self._waves[case.name]))
        if failure := self._failures[case.name]:
            raise failure

    def _attack_at_once(self, wave: Sequence[HostileCase]) -> dict[str, AssertionError | None]:
        site = self.site
        before = site.count_problems()
        sent = site.send_at_once(wave)
        names = ", ".join(case.name for case in wave)
        harm = _catch(lambda: site.assert_nobody_harmed(before, names))
        if harm is None:
            return {each.case.name: _catch(lambda each=each: self._judge(each)) for each in sent}
        self._renew()
        failures = {case.name: _catch(lambda case=case: self.attack_alone(case)) for case in wave}
        return failures if any(failures.values()) else dict.fromkeys(failures, harm)

    def _judge(self, sent: SentCase) -> None:
        """Check the answer, unless the other requests of its wave may be to blame for it: late, missing, or busy."""
        if sent.answer is None or sent.answer.status == 503 or sent.took_s > self.site.limit_s:
            self.attack_alone(sent.case)
        else:
            self.site.check(sent)

    def attack_alone(self, case: HostileCase) -> None:
        try:
            self.site.attack(case)
        except AssertionError:
            self._renew()
            raise

    def _renew(self) -> None:
        """Close a server that a case has broken."""
        if not self._is_sound():
            self.close()

    def _is_sound(self) -> bool:
        """The same workers, and honest clients that are answered as usual again."""
        site = self.site
        if not site.is_same_worker():
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


def split_in_waves(cases: Sequence[HostileCase], size: int = WAVE_SIZE) -> list[list[HostileCase]]:
    """Each wave takes from the whole corpus: neighbours are alike, and would compete for the same part of the server."""
    count = -(-len(cases) // size)
    return [list(cases[start::count]) for start in range(count)]


def _catch(check: Callable[[], None]) -> AssertionError | None:
    try:
        check()
    except AssertionError as error:
        return error
    return None
