from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from enginebay.server.supervisor.supervisor import Supervisor


def make_child(exited: bool) -> Any:
    return SimpleNamespace(channel=SimpleNamespace(closed=SimpleNamespace(done=lambda: exited)))


def test_a_trial_does_not_wait_for_a_process_that_exited() -> None:
    children = [make_child(False), make_child(True)]
    supervisor: Any = SimpleNamespace(_instance=None, _children=children)
    assert Supervisor._list_processes(supervisor) == children[:1]
