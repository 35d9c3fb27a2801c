"""Requests alone, for tests that do not look at notes."""

from __future__ import annotations

from typing import Any

from enginebay.lab.requests import Request
from enginebay.lab.workload.make import make_workload


def make_requests(*given: Any, **named: Any) -> list[Request]:
    return list(make_workload(*given, **named).requests)
