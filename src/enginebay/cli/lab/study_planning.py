"""Plans the points of a study: of engines, or of a running server. Nothing is measured."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from enginebay.cli.lab.lab_credentials import build_inference_headers
from enginebay.cli.output.console import note
from enginebay.config.sections.config_keys import AUTO
from enginebay.errors import ConfigError, EngineMissing, UsageError

if TYPE_CHECKING:
    from enginebay.config.sweep_points import DroppedPoint, SweepPoint
    from enginebay.lab.loadgen.sender_task import TargetServer
    from enginebay.lab.study.study_point import StudyPoint
    from enginebay.lab.workload.workload_spec import TextTokenizer


def plan_engine_points(
    config: Path | None, preset: str | None, flags: dict[str, Any], model: str | None, tokenizer: str | None,
    ignore_warnings: bool, *, convert: bool = True,
) -> tuple[list[StudyPoint], list[DroppedPoint], int, dict[str, Any]]:  # fmt: skip
    from enginebay import environments
    from enginebay.cli.options.stack_options import StatusLine
    from enginebay.config.sweep_points import expand_points

    chosen, dropped = expand_points(config, preset=preset, flags=flags)
    if not chosen:
        raise ConfigError("no point can run", "; ".join(point.reasons[0] for point in dropped))
    for kind, _, version in (sweep_point.engine.partition("==") for sweep_point in chosen):
        if kind != AUTO and convert:
            environments.find_environment(kind, version or None)  # fail before preparing the other engines
    progress, tokenizer_path = StatusLine(), _resolve_tokenizer(tokenizer)
    points = [
        point
        for sweep_point in chosen
        for point in _build_points(sweep_point, model, tokenizer_path, progress.update, convert=convert)
    ]
    progress.clear()
    warnings = {warning: None for point in points for warning in point.warnings}
    if warnings and not ignore_warnings:
        lines = "\n".join(f"  {line}" for line in warnings)
        raise ConfigError(
            f"an engine would ignore a setting\n{lines}", "remove the setting, or pass --ignore-engine-warnings"
        )
    return points, dropped, chosen[0].config.experiment.num_cycles, _record_inputs(config, preset, flags)


def _build_points(
    sweep_point: SweepPoint, model: str | None, tokenizer: str | None, say: Callable[[str], None], *, convert: bool
) -> list[StudyPoint]:
    """Build the points of one engine. A dry run shows them even if it is not installed."""
    from enginebay.cli.lab.study_points import build_engine_points, build_unchecked_points

    try:
        return build_engine_points(sweep_point, model, tokenizer, say, convert=convert)
    except EngineMissing as error:
        if convert:
            raise
        note(f"not checked: {error.message}, so its settings and its tokenizer are unknown; {error.hint}")
        return build_unchecked_points(sweep_point, model, tokenizer)


def plan_url_points(
    config: Path | None, preset: str | None, flags: dict[str, Any], url: str, model: str | None, tokenizer: str | None
) -> tuple[list[StudyPoint], list[DroppedPoint], int, dict[str, Any]]:
    from enginebay.cli.lab.study_points import build_url_points
    from enginebay.config.loader import load_config
    from enginebay.lab.loadgen.sender_task import TargetServer
    from enginebay.lab.study.server_api import find_only_model

    target = TargetServer(url, "", build_inference_headers([url], os.environ))
    target.address  # noqa: B018 - rejects an invalid URL before the study is created
    for name in ("engine", "engines"):
        if flags[name] is not None:
            raise UsageError("--engine does not apply to a running server", "remove --engine or --url")
    loaded = load_config(config, preset=preset, flags={name: value for name, value in flags.items() if name != "model"})
    if loaded.experiment.sweep:
        raise ConfigError("a running server cannot be swept", "remove the sweep or --url")
    name = model or loaded.model or find_only_model(target)
    kind = _detect_engine(replace(target, model=name))
    points = build_url_points(
        loaded, url, name, _resolve_tokenizer(tokenizer) or _find_byte_tokenizer(kind) or _find_stored_tokenizer(name)
    )
    return points, [], loaded.experiment.num_cycles, _record_inputs(config, preset, flags)


def _detect_engine(target: TargetServer) -> str:
    """Return the engine kind of a bay server; "" if unknown. Raises `UsageError` if it lacks the model."""
    from enginebay.lab.study.server_api import ServerUnusable
    from enginebay.lab.study.server_facts import fetch_checked_facts

    try:
        return fetch_checked_facts(target).kind
    except ServerUnusable:  # planning needs no server; the run reports the error
        return ""


def _find_byte_tokenizer(kind: str) -> str | None:
    from enginebay.engines import registry
    from enginebay.lab.workload.byte_tokenizer import BYTE_TOKENIZER_NAME

    spec = registry.load_specs().get(kind)
    return BYTE_TOKENIZER_NAME if spec is not None and spec.byte_tokens else None


def _resolve_tokenizer(tokenizer: str | None) -> str | None:
    """Resolve a path, the name of a stored model, or the byte tokenizer to a tokenizer path."""
    from enginebay.lab.workload.byte_tokenizer import BYTE_TOKENIZER_NAME

    if tokenizer is None or tokenizer == BYTE_TOKENIZER_NAME or Path(tokenizer).exists():
        return tokenizer
    stored = _find_stored_tokenizer(tokenizer)
    if stored is None:
        raise UsageError(f"no tokenizer at {tokenizer!r}", "pass the path of the model's files, or a stored model")
    return stored


def _find_stored_tokenizer(model: str) -> str | None:
    from enginebay.errors import UnknownModel
    from enginebay.models import resolve_model

    try:
        return str(resolve_model(model).path)
    except UnknownModel:
        return None


def _record_inputs(config: Path | None, preset: str | None, flags: dict[str, Any]) -> dict[str, Any]:
    """Collect the user's input for the manifest."""
    set_flags = {name: value for name, value in flags.items() if value is not None}
    text = config.read_text(encoding="utf-8") if config is not None else None
    return {"file": text, "preset": preset, "flags": set_flags}


def read_tokenizer(path: str) -> TextTokenizer:
    from enginebay.lab.workload.byte_tokenizer import BYTE_TOKENIZER_NAME, ByteTokenizer
    from enginebay.text.tokenization.tokenizer import load_tokenizer

    return ByteTokenizer() if path == BYTE_TOKENIZER_NAME else load_tokenizer(Path(path))
