"""Workloads from config data.

{"kind": "synthetic", "input_tokens": 128, "output_tokens": {"kind": "lognormal", "mean": 200, "std": 100, "max": 800}}
{"kind": "jsonl", "path": "prompts.jsonl", "max_input_tokens": 512}
{"kind": "trace", "format": "azure", "path": "AzureLLMInferenceTrace_conv.csv", "too_long": "drop"}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from enginebay.errors import ConfigError
from enginebay.lab.workload.fields import choice, known_keys, positive_number, truth, whole_number
from enginebay.lab.workload.lengths import length_data, read_length
from enginebay.lab.workload.spec import FORMATS, SENDS, TOO_LONG, Jsonl, Recorded, Synthetic, WorkloadSpec

KINDS: dict[str, type[WorkloadSpec]] = {"synthetic": Synthetic, "jsonl": Jsonl, "trace": Recorded}
SUFFIXES = {".csv": "azure", ".jsonl": "mooncake"}
LENGTHS = ("input_tokens", "output_tokens")
NATURALS = {
    "requests": 1,
    "max_input_tokens": 1,
    "prefix_groups": 1,
    "block_tokens": 1,
    "shared_prefix_tokens": 0,
    "seed": 0,
}
CHOICES = {"send": SENDS, "format": FORMATS, "too_long": TOO_LONG}


def read_workload(data: Mapping[str, Any], folder: Path | None = None) -> WorkloadSpec:
    """The workload that config data asks for; paths in it are relative to `folder`."""
    if not isinstance(data, Mapping) or "kind" not in data:
        raise ConfigError("workload needs a kind", f"choose from {', '.join(KINDS)}", param="workload.kind")
    made = KINDS[choice("workload.kind", data["kind"], KINDS)]
    names = [field.name for field in fields(made)]
    rest = {key: value for key, value in data.items() if key != "kind" and value is not None}
    if made is Recorded and "format" not in rest:
        rest["format"] = SUFFIXES.get(Path(str(rest.get("path", ""))).suffix, "")
    required = [field.name for field in fields(made) if field.default is MISSING]
    given = known_keys("workload", rest, names, required)
    return made(**{name: _checked(name, value, folder) for name, value in given.items()})


def _checked(name: str, value: Any, folder: Path | None) -> Any:
    where = f"workload.{name}"
    if name in LENGTHS:
        return read_length(where, value)
    if name in NATURALS:
        return whole_number(where, value, NATURALS[name])
    if name in CHOICES:
        return choice(where, value, CHOICES[name])
    if name == "start_s":
        return positive_number(where, value, zero=True)
    if name == "path":
        return _path(where, value, folder)
    return truth(where, value)


def _path(where: str, value: Any, folder: Path | None) -> Path:
    if not isinstance(value, str | Path) or not str(value):
        raise ConfigError(f"{where} must be the path of a file, not {value!r}", "name a file", param=where)
    path = (folder or Path()) / Path(value).expanduser()
    if not path.is_file():
        raise ConfigError(
            f"there is no file {path}", f"paths in a config are relative to its folder; correct {where}", param=where
        )
    return path


def workload_data(spec: WorkloadSpec) -> dict[str, Any]:
    """A workload as the data that `read_workload` takes."""
    found: dict[str, Any] = {"kind": spec.kind}
    for field in fields(spec):
        value = getattr(spec, field.name)
        if value is not None:
            found[field.name] = (
                length_data(value) if field.name in LENGTHS else str(value) if field.name == "path" else value
            )
    return found
