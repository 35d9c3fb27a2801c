"""Parse workloads from config data.

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
from enginebay.lab.workload import field_checks
from enginebay.lab.workload.length_distributions import length_from_value, length_to_value
from enginebay.lab.workload.workload_spec import (
    SEND_FORMS,
    TOO_LONG_POLICIES,
    TRACE_FORMATS,
    JsonlSpec,
    SyntheticSpec,
    TraceSpec,
    WorkloadSpec,
)

WORKLOAD_KINDS: dict[str, type[WorkloadSpec]] = {"synthetic": SyntheticSpec, "jsonl": JsonlSpec, "trace": TraceSpec}
TRACE_SUFFIXES = {".csv": "azure", ".jsonl": "mooncake"}
LENGTH_KEYS = ("input_tokens", "output_tokens")
INTEGER_MINIMUMS = {
    "requests": 1,
    "max_input_tokens": 1,
    "prefix_groups": 1,
    "block_tokens": 1,
    "shared_prefix_tokens": 0,
    "seed": 0,
}
CHOICE_KEYS = {"send": SEND_FORMS, "format": TRACE_FORMATS, "too_long": TOO_LONG_POLICIES}


def workload_from_dict(data: Mapping[str, Any], folder: Path | None = None) -> WorkloadSpec:
    """Build a workload from config data; its paths are relative to `folder`."""
    if not isinstance(data, Mapping) or "kind" not in data:
        raise ConfigError("workload needs a kind", f"choose from {', '.join(WORKLOAD_KINDS)}", param="workload.kind")
    spec_type = WORKLOAD_KINDS[field_checks.check_choice("workload.kind", data["kind"], WORKLOAD_KINDS)]
    names = [field.name for field in fields(spec_type)]
    rest = {key: value for key, value in data.items() if key != "kind" and value is not None}
    if spec_type is TraceSpec and "format" not in rest:
        rest["format"] = TRACE_SUFFIXES.get(Path(str(rest.get("path", ""))).suffix, "")
    required = [field.name for field in fields(spec_type) if field.default is MISSING]
    values = field_checks.check_keys("workload", rest, names, required)
    return spec_type(**{name: _check_value(name, value, folder) for name, value in values.items()})


def _check_value(name: str, value: Any, folder: Path | None) -> Any:
    where = f"workload.{name}"
    if name in LENGTH_KEYS:
        return length_from_value(where, value)
    if name in INTEGER_MINIMUMS:
        return field_checks.check_whole_number(where, value, INTEGER_MINIMUMS[name])
    if name in CHOICE_KEYS:
        return field_checks.check_choice(where, value, CHOICE_KEYS[name])
    if name == "start_s":
        return field_checks.check_positive_number(where, value, zero=True)
    if name == "path":
        return _check_path(where, value, folder)
    return field_checks.check_bool(where, value)


def _check_path(where: str, value: Any, folder: Path | None) -> Path:
    if not isinstance(value, str | Path) or not str(value):
        raise ConfigError(f"{where} must be a file path, not {value!r}", "use a path", param=where)
    path = (folder or Path()) / Path(value).expanduser()
    if not path.is_file():
        raise ConfigError(
            f"file not found: {path}", f"paths in a config are relative to its folder; correct {where}", param=where
        )
    return path


def workload_to_dict(spec: WorkloadSpec) -> dict[str, Any]:
    """Return a workload as data that `workload_from_dict` accepts."""
    data: dict[str, Any] = {"kind": spec.kind}
    for field in fields(spec):
        value = getattr(spec, field.name)
        if value is not None:
            data[field.name] = (
                length_to_value(value) if field.name in LENGTH_KEYS else str(value) if field.name == "path" else value
            )
    return data
