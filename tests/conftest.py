"""For all tests."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# Machines that run tests stall: how long an example takes says nothing. The same examples in every run, so that a failure
# comes from what was changed; others with ENGINEBAY_DICE=1.
settings.register_profile(
    "enginebay",
    deadline=None,
    derandomize="ENGINEBAY_DICE" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
    database=None,
)
settings.load_profile("enginebay")
