"""Finds out, inside an engine's own environment, what the installed library takes.

Asked with `{"engine": "package.module:Class"}` it answers with that engine's probe; with `{"discover": true}` it looks
for other people's engines here and answers with their specs too. The answer is one marked line, since libraries print
to stdout while they are imported.
"""

from __future__ import annotations

import json
import sys
import traceback
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from enginebay.contract import EngineSpec, Probe

MARK = "ENGINEBAY-PROBE "
GROUP = "enginebay.engines"


def main(arguments: list[str]) -> int:
    try:
        answer = _answer(json.loads(arguments[0]))
    except Exception as error:  # everything a library can raise while it is imported
        traceback.print_exc()
        answer = {"error": f"{type(error).__name__}: {error}"}
    sys.stdout.write(f"\n{MARK}{json.dumps(answer)}\n")
    sys.stdout.flush()
    return 1 if "error" in answer else 0


def _answer(asked: dict[str, Any]) -> dict[str, Any]:
    if asked.get("discover"):
        return {"found": [_describe(point) for point in entry_points(group=GROUP) if _is_foreign(point)]}
    return {"probe": _probe(asked["engine"]).to_json()}


def _describe(point: EntryPoint) -> dict[str, Any]:
    spec = point.load()
    if not isinstance(spec, EngineSpec):
        raise TypeError(f"the entry point {point.name} = {point.value} is not an EngineSpec")
    return {
        "distribution": point.dist.name if point.dist else "",
        "version": point.dist.version if point.dist else "",
        "spec": spec.to_json(),
        "probe": _probe(spec.engine).to_json(),
    }


def _is_foreign(point: EntryPoint) -> bool:
    return not point.value.startswith("enginebay.")


def _probe(engine: str) -> Probe:
    module, _, name = engine.partition(":")
    probe = getattr(import_module(module), name).probe()
    if not isinstance(probe, Probe):
        raise TypeError(f"{engine}.probe() gave a {type(probe).__name__}, not a Probe")
    return probe
