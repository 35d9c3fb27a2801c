"""Options of `bay run`, `bay chat`, `bay batch` and `bay serve`: model, engine, configuration and settings."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from enginebay.cli.options.command_app import ConfigOption as ConfigOption
from enginebay.cli.output.console import note, redraw_line
from enginebay.config.layers.layer_sources import parse_assignments
from enginebay.config.loader import load_config
from enginebay.config.sections.config_keys import ConfigKeys
from enginebay.engines import registry
from enginebay.errors import UsageError

if TYPE_CHECKING:
    from enginebay.fleet.lifecycle.launch_plan import LaunchPlan

ModelArgument = Annotated[
    str, typer.Argument(help="A model in the store, the catalogue or the configuration, a path, or a source")
]
EngineOption = Annotated[
    str | None,
    typer.Option(
        "--engine", "-e", "--backend", help="llamacpp, transformers, vllm, ... or KIND==VERSION (default: auto)"
    ),
]
PresetOption = Annotated[
    str | None, typer.Option("--preset", help="Preset to start from; the configuration overrides it. See `bay presets`")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE",
        help="Set an engine setting, such as context_length=2048, or a configuration key, such as sampling.seed=1; repeatable",
    ),
]  # fmt: skip
SetKeyOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Override a configuration key, such as vllm.max_num_seqs=64; repeatable"
    ),
]
OfflineOption = Annotated[bool | None, typer.Option("--offline/--online", help="Never use the network")]
StrictOption = Annotated[bool, typer.Option("--strict", help="Treat retired keys and keys without effect as errors")]
LoraOption = Annotated[str | None, typer.Option("--lora", help="Name of a configured LoRA adapter")]
RawOption = Annotated[bool, typer.Option("--raw", help="Send the prompt as is, without the chat template")]

TRUNCATED_NOTE = "(truncated at max_tokens or the end of the context; raise --max-tokens)"


def build_stack_options(
    config: Path | None, set_: list[str] | None, offline: bool | None, strict: bool, engine: str | None
) -> dict[str, Any]:
    """Convert these flags to keyword arguments of a stack."""
    keys, settings = split_assignments(set_)
    return {
        "engine": engine,
        "config": load_config(config, flags=keys if offline is None else {**keys, "offline": offline}, strict=strict),
        "settings": settings,
        "strict": strict,
    }


def split_assignments(assignments: list[str] | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split `--set` into configuration keys by full name and engine settings by bare name."""
    values = parse_assignments(assignments or [])
    specs = registry.load_specs()
    heads = set(ConfigKeys(specs).list_section_names())
    heads -= {name.split(".")[0] for spec in specs.values() for name in spec.settings}  # `model` is a setting of openai
    keys = {key: value for key, value in values.items() if key.split(".")[0] in heads}
    return keys, {key: value for key, value in values.items() if key not in keys}


def warn_unused_keys(assignments: list[str] | None, kind: str) -> None:
    """Warn about `--set` keys of other engines."""
    known_keys = ConfigKeys(registry.load_specs())
    for key in split_assignments(assignments)[0]:
        owner = known_keys.resolve_kind(key.split(".")[0])
        if owner not in (None, kind):
            note(f"warning: {key} applies to {owner} only, and this runs on {kind}")


def check_adapter_name(plan: LaunchPlan, name: str | None) -> None:
    """Raise `UsageError` if the model has no such adapter, before it is loaded."""
    known = plan.launch.load.loras
    if name is not None and name not in known:
        hint = f"available: {', '.join(known)}" if known else "list it under the model's loras in the configuration"
        raise UsageError(f"{plan.model} has no LoRA adapter {name!r}", hint, param="lora")


def show_warnings(warnings: list[str]) -> None:
    for warning in warnings:
        note(f"warning: {warning}")


class StatusLine:
    """Shows the current activity on stderr; off a terminal, only after `after_s`."""

    def __init__(self, after_s: float = 1.0) -> None:
        self._started = time.monotonic()
        self._after_s = after_s
        self._is_live = sys.stderr.isatty() and after_s != float("inf")

    def update(self, text: str) -> None:
        if self._is_live:
            redraw_line(f"{text} ...")
        elif time.monotonic() - self._started > self._after_s:
            note(f"{text} ...")

    def clear(self) -> None:
        if self._is_live:
            redraw_line()
