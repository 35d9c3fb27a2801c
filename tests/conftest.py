"""For all tests."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# Machines that run tests stall: how long an example takes says nothing. The same examples in every run, as a failure must
# come from what was changed.
settings.register_profile(
    "enginebay", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], database=None
)
settings.load_profile("enginebay")
