"""How server processes divide what an engine runs at once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

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
    facts: Any = SimpleNamespace(max_batch=engine, reservable_tokens=None)
    connector._apply_engine_limits(limit, facts)
    taken = 0
    while connector.queue.try_enter():
        taken += 1
    assert taken == expected
