"""The capability table: every request and load parameter on every engine, from the engines' own declarations. Pure.

`python -m enginebay.engines.capability_matrix --write docs/engines.md` makes the documentation page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from enginebay.contract import Capability, EngineSpec, Support, parameters

ABSENT = "-"


@dataclass(frozen=True, slots=True)
class CapabilityRow:
    """One parameter: what each engine does with it, in the order of the engines."""

    name: str
    cells: tuple[str, ...]


def build_request_rows(specs: Sequence[EngineSpec]) -> list[CapabilityRow]:
    return [CapabilityRow(name, tuple(format_cell(spec.request.get(name)) for spec in specs)) for name in parameters()]


def build_load_rows(specs: Sequence[EngineSpec]) -> list[CapabilityRow]:
    """Every load parameter any of the engines knows, retired ones included."""
    names = list(dict.fromkeys(name for spec in specs for name in (*spec.settings, *spec.retired)))
    return [CapabilityRow(name, tuple(_format_load_cell(spec, name) for spec in specs)) for name in sorted(names)]


def format_cell(capability: Capability | None) -> str:
    """One capability in words: `honours`, `translates: to what`, `refuses: what instead`."""
    if capability is None:
        return ABSENT
    return f"{capability.support}: {capability.detail}" if capability.detail else str(capability.support)


def _format_load_cell(spec: EngineSpec, name: str) -> str:
    if name in spec.settings:
        return format_cell(spec.settings[name].capability)
    if name in spec.retired:
        gone = spec.retired[name]
        return f"retired in {gone.since}: {gone.instead}"
    return ABSENT


def to_json(specs: Sequence[EngineSpec]) -> dict[str, dict[str, dict[str, str]]]:
    """parameter -> engine -> what it does, for requests and for loading."""
    kinds = [spec.kind for spec in specs]
    return {
        "request": {row.name: dict(zip(kinds, row.cells, strict=True)) for row in build_request_rows(specs)},
        "load": {row.name: dict(zip(kinds, row.cells, strict=True)) for row in build_load_rows(specs)},
    }


def render_markdown(specs: Sequence[EngineSpec]) -> str:
    """The documentation page."""
    kinds = [spec.kind for spec in specs]
    return "\n".join(
        [
            "# What each engine does with each parameter",
            "",
            "Generated from the engines' declarations (`src/enginebay/engines/*/spec.py`) with",
            "`python -m enginebay.engines.capability_matrix --write docs/engines.md`; a test fails when the page is out of date.",
            "For what the installed versions do on a host, run `bay engines matrix` there.",
            "",
            "How far this is proven:",
            "",
            "- Request parameters: the contract suite proves each line by its effect on the real engine.",
            "- Load parameters: declared. Those that have a name in the engine's library are checked against the",
            "  installed version's own signature, and refused where it does not know them. The tests exercise a part",
            "  of them on the real engine, not all.",
            "",
            "What the words mean:",
            "",
            "- **honours**: does it, natively.",
            "- **translates**: does it by other means; the answer lists the translation.",
            "- **refuses**: an error that names the parameter and what to use instead. Never silence.",
            "",
            "## Engines",
            "",
            *_format_table(
                ["engine", "what it is", "model formats", "parallel", "started with"],
                [_build_engine_row(spec) for spec in specs],
            ),
            "",
            "## Request parameters",
            "",
            *_format_table(["parameter", *kinds], [[f"`{row.name}`", *row.cells] for row in build_request_rows(specs)]),
            "",
            "## Load parameters",
            "",
            "A dash: the engine has no such setting, and a config that gives it is an error.",
            "",
            *_format_table(["parameter", *kinds], [[f"`{row.name}`", *row.cells] for row in build_load_rows(specs)]),
            "",
            *_build_settings_sections(specs),
        ]
    )


def _build_engine_row(spec: EngineSpec) -> list[str]:
    run = spec.runtime
    parallel = [word for word, has in (("tensor", run.tensor_parallel), ("pipeline", run.pipeline_parallel)) if has]
    modes = ", ".join(run.launch_modes)
    return [f"`{spec.kind}`", spec.summary, ", ".join(spec.formats), ", ".join(parallel) or ABSENT, modes]


def _build_settings_sections(specs: Sequence[EngineSpec]) -> list[str]:
    lines: list[str] = []
    for spec in specs:
        if not spec.settings:
            continue
        rows = [
            [
                f"`{name}`",
                one.type,
                _format_allowed(one.minimum, one.maximum, one.choices),
                _format_default(one.default),
                one.help,
            ]
            for name, one in spec.settings.items()
            if one.capability.support is not Support.REFUSES
        ]
        lines += [
            f"## Settings of `{spec.kind}`",
            "",
            *_format_table(["setting", "type", "allowed", "default", "what it does"], rows),
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
