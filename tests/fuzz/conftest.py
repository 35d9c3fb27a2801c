"""The servers of the hostile suite."""

from __future__ import annotations

from tests.hostile.conftest import keeper as keeper
