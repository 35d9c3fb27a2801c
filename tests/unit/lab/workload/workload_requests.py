"""Requests without notes."""

from __future__ import annotations

from typing import Any

from enginebay.lab.workload.request_records import Request
from enginebay.lab.workload.workload_builder import build_workload


def make_requests(*given: Any, **named: Any) -> list[Request]:
    return list(build_workload(*given, **named).requests)
