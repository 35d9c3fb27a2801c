"""Probes, inside an engine's own environment, what the installed library supports.

The request `{"engine": "package.module:Class"}` returns that engine's probe; `{"discover": true}` finds third-party
engines and returns their specs and probes; `{"memory": "package.module:function", "facts": {...}}` estimates memory. The reply is one marked line, because libraries print to stdout on import.
"""

from __future__ import annotations

import json
import sys
import traceback
from dataclasses import asdict
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from enginebay.contract import EngineSpec, MemoryFacts, Probe
from enginebay.contract.spec_checks import find_spec_problems

RESULT_PREFIX = "ENGINEBAY-PROBE "
ENTRY_POINT_GROUP = "enginebay.engines"


def main(arguments: list[str]) -> int:
    try:
        reply = _handle_request(json.loads(arguments[0]))
    except Exception as error:  # anything a library can raise on import
        traceback.print_exc()
        reply = {"error": f"{type(error).__name__}: {error}"}
    sys.stdout.write(f"\n{RESULT_PREFIX}{json.dumps(reply)}\n")
    sys.stdout.flush()
    return 1 if "error" in reply else 0


def _handle_request(request: dict[str, Any]) -> dict[str, Any]:
    if request.get("discover"):
        points = entry_points(group=ENTRY_POINT_GROUP)
        return {"found": [_describe_engine(point) for point in points if _is_third_party(point)]}
    if "memory" in request:
        facts = {**request["facts"], "gpus": tuple(request["facts"]["gpus"])}
        return {"memory": asdict(_load_object(request["memory"])(MemoryFacts(**facts)))}
    return {"probe": _probe_engine(request["engine"]).to_json()}


def _describe_engine(point: EntryPoint) -> dict[str, Any]:
    spec = point.load()
    if not isinstance(spec, EngineSpec):
        raise TypeError(f"the entry point {point.name} = {point.value} is not an EngineSpec")
    problems = find_spec_problems(spec)
    if problems:
        raise ValueError(f"the spec of {spec.kind} is not valid: {'; '.join(problems)}")
    if spec.memory:
        _load_object(spec.memory)  # raises if it is not there
    return {
        "distribution": point.dist.name if point.dist else "",
        "version": point.dist.version if point.dist else "",
        "spec": spec.to_json(),
        "probe": _probe_engine(spec.engine).to_json(),
    }


def _is_third_party(point: EntryPoint) -> bool:
    return not point.value.startswith("enginebay.")


def _probe_engine(engine: str) -> Probe:
    probe = _load_object(engine).probe()
    if not isinstance(probe, Probe):
        raise TypeError(f"{engine}.probe() returned a {type(probe).__name__}, not a Probe")
    return probe


def _load_object(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)
