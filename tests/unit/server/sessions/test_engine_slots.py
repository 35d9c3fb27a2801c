"""How server processes divide what an engine runs at once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from enginebay.config.sections.server_section import ServerLimits
from enginebay.server.sessions.model_catalog import VariantConnector


@pytest.mark.parametrize(
    ("limit", "engine", "processes", "expected"),
    [(256, 4, 3, 2), (256, 1, 4, 1), (256, 8, 1, 8), (4, 64, 2, 2), (3, 64, 2, 1), (100, 0, 3, 33)],
)
async def test_no_slot_of_the_engine_stays_unused(limit: int, engine: int, processes: int, expected: int) -> None:
    """The operator's own limit is never exceeded."""
    connector = VariantConnector("m", "fake", ServerLimits(), processes)
    assert _count_slots(connector, limit, engine) == expected


async def test_every_replica_adds_its_slots() -> None:
    connector = VariantConnector("m", "fake", ServerLimits(), 1)
    assert _count_slots(connector, 256, 4, 8, 4) == 16


def _count_slots(connector: VariantConnector, limit: int, *batches: int) -> int:
    for number, batch in enumerate(batches):
        facts = SimpleNamespace(max_batch=batch, reservable_tokens=None)
        connector._sessions[str(number)] = cast(
            "Any", SimpleNamespace(client=SimpleNamespace(facts=facts), reserved=False)
        )
    connector._apply_engine_limits(limit)
    taken = 0
    while connector.queue.try_enter():
        taken += 1
    return taken
