"""What `bay run`, `bay chat` and `bay batch` have in common: which model, on which engine, with which settings."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from enginebay.cli.output import note
from enginebay.config.load import load_config
from enginebay.config.model import Config
from enginebay.errors import UsageError

Model = Annotated[str, typer.Argument(help="A model of the store, the catalogue or the configuration, a path, or a source")]
Engine = Annotated[str | None, typer.Option("--engine", "-e", "--backend", help="llamacpp, transformers, vllm, ... (default: auto)")]
ConfigFile = Annotated[Path | None, typer.Option("--config", "-c", help="A YAML file (default: enginebay.yaml here, then in ENGINEBAY_HOME)")]
Set = Annotated[list[str] | None, typer.Option("--set", help="An engine setting for this run, like --set context_length=2048")]
Offline = Annotated[bool | None, typer.Option("--offline/--online", help="Never use the network")]
Strict = Annotated[bool, typer.Option("--strict", help="A retired or inapplicable key is an error")]
Lora = Annotated[str | None, typer.Option("--lora", help="A LoRA adapter of the configuration, by name")]
Raw = Annotated[bool, typer.Option("--raw", help="The prompt as it is, without the chat template")]


def configuration(file: Path | None, offline: bool | None, strict: bool, engine: str | None) -> Config:
    """The configuration with the flags on top; warnings are shown once, here."""
    flags: dict[str, Any] = {}
    if offline is not None:
        flags["offline"] = offline
    if engine is not None:
        flags["engine"] = engine
    config = load_config(file, flags=flags, strict=strict)
    for warning in config.warnings:
        note(f"warning: {warning}")
    return config


def settings(given: list[str] | None) -> dict[str, Any]:
    """`--set a.b=1` as {"a.b": 1}; values are read as YAML."""
    found = {}
    for one in given or ():
        name, equals, value = one.partition("=")
        if not equals or not name:
            raise UsageError(f"--set takes NAME=VALUE, got {one!r}", "like: --set context_length=2048")
        found[name.strip()] = yaml.safe_load(value)
    return found


class Progress:
    """Says on the terminal what is going on, once it has gone on for a while."""

    def __init__(self, after_s: float = 1.0) -> None:
        self._started = time.monotonic()
        self._after_s = after_s
        self._line = sys.stderr.isatty()

    def say(self, text: str) -> None:
        if self._line:
            sys.stderr.write(f"\r\x1b[K{text} ...")
            sys.stderr.flush()
        elif time.monotonic() - self._started > self._after_s:
            note(f"{text} ...")

    def clear(self) -> None:
        if self._line:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
