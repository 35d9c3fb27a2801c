"""The capability table: how each engine treats each request and load parameter, from the declared specs. Pure.

`python -m enginebay.engines.capability_matrix --write docs/engines.md` writes the documentation page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from enginebay.contract import Capability, EngineSpec, Setting, Support, parameters

ABSENT = "-"


@dataclass(frozen=True, slots=True)
class CapabilityRow:
    """One parameter, with one cell for each engine."""

    name: str
    cells: tuple[str, ...]


def build_request_rows(specs: Sequence[EngineSpec]) -> list[CapabilityRow]:
    return [CapabilityRow(name, tuple(format_cell(spec.request.get(name)) for spec in specs)) for name in parameters()]


def build_load_rows(specs: Sequence[EngineSpec]) -> list[CapabilityRow]:
    """Return a row for each load parameter of any engine, retired ones included."""
    names = list(dict.fromkeys(name for spec in specs for name in (*spec.settings, *spec.retired)))
    return [CapabilityRow(name, tuple(_format_load_cell(spec, name) for spec in specs)) for name in sorted(names)]


def format_cell(capability: Capability | None) -> str:
    """Return a capability as text: `honours`, `translates: TARGET` or `refuses: ALTERNATIVE`."""
    if capability is None:
        return ABSENT
    return f"{capability.support}: {capability.detail}" if capability.detail else str(capability.support)


def _format_load_cell(spec: EngineSpec, name: str) -> str:
    if name in spec.settings:
        return format_cell(spec.settings[name].capability)
    if name in spec.retired:
        retired = spec.retired[name]
        return f"retired in {retired.since}: {retired.instead}"
    return ABSENT


def to_json(specs: Sequence[EngineSpec]) -> dict[str, dict[str, dict[str, str]]]:
    """Return parameter -> engine -> cell, for request and load parameters."""
    kinds = [spec.kind for spec in specs]
    return {
        "request": {row.name: dict(zip(kinds, row.cells, strict=True)) for row in build_request_rows(specs)},
        "load": {row.name: dict(zip(kinds, row.cells, strict=True)) for row in build_load_rows(specs)},
    }


def render_markdown(specs: Sequence[EngineSpec]) -> str:
    """Return the documentation page."""
    kinds = [spec.kind for spec in specs]
    return "\n".join(
        [
            "# What each engine does with each parameter",
            "",
            "Generated from the engines' declarations (`src/enginebay/engines/*/spec.py`) with",
            "`python -m enginebay.engines.capability_matrix --write docs/engines.md`; a test fails when the page is out of date.",
            "For what the installed versions do on a host, run `bay engines matrix` there.",
            "",
            "How this is verified:",
            "",
            "- Request parameters: the contract suite checks the effect of each one on the real engine.",
            "- Load parameters: declared. Those that map to a parameter of the engine's library are checked against the",
            "  signature of the installed version, and refused if it lacks them. The tests run some of them, not all, on",
            "  the real engine.",
            "",
            "The terms:",
            "",
            "- **honours**: supported natively.",
            "- **translates**: supported by other means; the response lists the translation.",
            "- **refuses**: returns an error that names the parameter and an alternative. No parameter is silently ignored.",
            "",
            "## Engines",
            "",
            *_format_table(
                ["engine", "summary", "model formats", "parallelism", "launch modes"],
                [_build_engine_row(spec) for spec in specs],
            ),
            "",
            "## Request parameters",
            "",
            *_format_table(["parameter", *kinds], [[f"`{row.name}`", *row.cells] for row in build_request_rows(specs)]),
            "",
            "## Load parameters",
            "",
            "A dash means that the engine has no such setting; a configuration that sets it is rejected.",
            "",
            *_format_table(["parameter", *kinds], [[f"`{row.name}`", *row.cells] for row in build_load_rows(specs)]),
            "",
            *_build_settings_sections(specs),
        ]
    )


def _build_engine_row(spec: EngineSpec) -> list[str]:
    runtime = spec.runtime
    supported = (("tensor", runtime.tensor_parallel), ("pipeline", runtime.pipeline_parallel))
    parallel = [name for name, is_supported in supported if is_supported]
    modes = ", ".join(runtime.launch_modes)
    return [f"`{spec.kind}`", spec.summary, ", ".join(spec.formats), ", ".join(parallel) or ABSENT, modes]


def _describe_setting(setting: Setting) -> str:
    parts = [setting.help]
    if setting.aliases:
        parts.append(f"also: {', '.join(setting.aliases)}")
    if setting.tune:
        parts.append(f"`auto` in a sweep: {', '.join(map(str, setting.tune))}")
    return "; ".join(parts)


def _build_settings_sections(specs: Sequence[EngineSpec]) -> list[str]:
    lines: list[str] = []
    for spec in specs:
        if not spec.settings:
            continue
        rows = [
            [
                f"`{name}`",
                setting.type,
                _format_allowed(setting.minimum, setting.maximum, setting.choices),
                _format_default(setting.default),
                _describe_setting(setting),
            ]
            for name, setting in spec.settings.items()
            if setting.capability.support is not Support.REFUSES
        ]
        lines += [
            f"## Settings of `{spec.kind}`",
            "",
            *_format_table(["setting", "type", "allowed", "default", "description"], rows),
            "",
        ]
    return lines


def _format_allowed(minimum: float | None, maximum: float | None, choices: tuple[object, ...]) -> str:
    if choices:
        return ", ".join(str(choice) for choice in choices)
    if minimum is not None and maximum is not None:
        return f"{minimum:g} to {maximum:g}"
    if minimum is not None:
        return f"at least {minimum:g}"
    return f"at most {maximum:g}" if maximum is not None else ""


def _format_default(value: object) -> str:
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _format_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [_format_row(head), _format_row(["---"] * len(head)), *(_format_row(row) for row in rows)]


def _format_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(text.replace("|", "\\|").replace("\n", " ") for text in cells) + " |"


def main(argv: Sequence[str]) -> int:
    from enginebay.engines.registry import load_built_in_specs

    page = render_markdown(load_built_in_specs())
    if len(argv) == 2 and argv[0] == "--write":
        Path(argv[1]).write_text(page, encoding="utf-8")
    else:
        print(page, end="")
    return 0


if __name__ == "__main__":
    import sys

    sys.exit(main(sys.argv[1:]))
