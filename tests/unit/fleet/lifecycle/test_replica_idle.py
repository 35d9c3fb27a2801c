"""The idle time after which a replica is unloaded."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from enginebay.fleet.lifecycle.replica import Replica


def test_a_limit_that_a_request_set_ends_with_the_worker() -> None:
    variant: Any = SimpleNamespace(name="m", max_replicas=1, idle_s=60.0)
    replica = Replica(variant, "key", {}, None, idle_s=60.0)
    replica.idle_s = None  # as `keep_alive: -1` does
    replica.detach_worker()
    assert replica.idle_s == 60.0
