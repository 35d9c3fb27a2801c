"""What `bay run`, `bay chat` and `bay batch` have in common: which model, on which engine, with which settings."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from enginebay.cli.output.console import note
from enginebay.config.layers.layer_sources import parse_assignments
from enginebay.config.loader import load_config
from enginebay.config.sections.config_keys import ConfigKeys
from enginebay.engines import registry

ModelArgument = Annotated[
    str, typer.Argument(help="A model of the store, the catalogue or the configuration, a path, or a source")
]
EngineOption = Annotated[
    str | None,
    typer.Option(
        "--engine", "-e", "--backend", help="llamacpp, transformers, vllm, ... or KIND==VERSION (default: auto)"
    ),
]
ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config", "-c", help="A YAML file (default: enginebay.yaml here, else config.yaml in ENGINEBAY_HOME)"
    ),
]
PresetOption = Annotated[
    str | None, typer.Option("--preset", help="Settings by name, below the configuration's own: see `bay presets`")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE",
        help="A setting of the engine, like --set context_length=2048, or a key of the configuration, like --set sampling.seed=1",
    ),
]  # fmt: skip
SetKeyOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A key over the configuration's, like --set vllm.max_num_seqs=64"),
]
OfflineOption = Annotated[bool | None, typer.Option("--offline/--online", help="Never use the network")]
StrictOption = Annotated[bool, typer.Option("--strict", help="A retired or inapplicable key is an error")]
LoraOption = Annotated[str | None, typer.Option("--lora", help="A LoRA adapter of the configuration, by name")]
RawOption = Annotated[bool, typer.Option("--raw", help="The prompt as it is, without the chat template")]

TRUNCATED_NOTE = "(cut off at max_tokens or the end of the context; --max-tokens allows more)"


def build_stack_options(
    config: Path | None, set_: list[str] | None, offline: bool | None, strict: bool, engine: str | None
) -> dict[str, Any]:
    """What these flags mean to a stack."""
    keys, settings = split_assignments(set_)
    return {
        "engine": engine,
        "config": load_config(config, flags=keys if offline is None else {**keys, "offline": offline}, strict=strict),
        "settings": settings,
        "strict": strict,
    }


def split_assignments(assignments: list[str] | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Of `--set`: the configuration's keys by their full names, and settings of the engine by their bare ones."""
    given = parse_assignments(assignments or [])
    specs = registry.load_specs()
    heads = set(ConfigKeys(specs).list_section_names())
    heads -= {name.split(".")[0] for spec in specs.values() for name in spec.settings}  # `model` is one of openai's
    keys = {key: value for key, value in given.items() if key.split(".")[0] in heads}
    return keys, {key: value for key, value in given.items() if key not in keys}


def warn_unused_keys(assignments: list[str] | None, kind: str) -> None:
    """Of `--set`, those of other engines than the one that runs."""
    words = ConfigKeys(registry.load_specs())
    for key in split_assignments(assignments)[0]:
        owner = words.resolve_kind(key.split(".")[0])
        if owner not in (None, kind):
            note(f"warning: {key} counts on {owner} alone, and this runs on {kind}")


def show_warnings(warnings: list[str]) -> None:
    for warning in warnings:
        note(f"warning: {warning}")


class StatusLine:
    """Says on the terminal what is going on, once it has gone on for a while."""

    def __init__(self, after_s: float = 1.0) -> None:
        self._started = time.monotonic()
        self._after_s = after_s
        self._is_live = sys.stderr.isatty() and after_s != float("inf")

    def update(self, text: str) -> None:
        if self._is_live:
            sys.stderr.write(f"\r\x1b[K{text} ...")
            sys.stderr.flush()
        elif time.monotonic() - self._started > self._after_s:
            note(f"{text} ...")

    def clear(self) -> None:
        if self._is_live:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
