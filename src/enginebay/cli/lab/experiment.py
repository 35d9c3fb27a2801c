"""`bay experiment [CONFIG]`: benchmark engines, or a running server, and store the runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from enginebay.cli.lab.lab_credentials import build_admin_headers, build_inference_headers
from enginebay.cli.lab.lab_dependencies import require_lab
from enginebay.cli.options.command_app import ConfigOption, create_app, pick_config_file
from enginebay.cli.options.stack_options import OfflineOption, SetKeyOption
from enginebay.cli.output.console import emit_json, note, print_table
from enginebay.config.layers.layer_sources import parse_assignments
from enginebay.config.sections.config_keys import AUTO
from enginebay.errors import ConfigError, EnginebayError, UsageError
from enginebay.util.text_format import pluralize

if TYPE_CHECKING:
    from enginebay.config.sweep_points import DroppedPoint
    from enginebay.lab.loadgen.sender_task import TargetServer
    from enginebay.lab.store.study_plan import Study
    from enginebay.lab.study.run_study import StudyOutcome
    from enginebay.lab.study.study_point import StudyPoint
    from enginebay.lab.workload.workload_spec import TextTokenizer

app = create_app()


@app.command()
def experiment(
    config: Annotated[Path | None, typer.Argument(metavar="[CONFIG]", help="Config file; see docs/lab.md")] = None,
    *,
    engine: Annotated[
        list[str] | None, typer.Option("--engine", "-e", "--backend", help="Engine to measure; repeatable")
    ] = None,
    preset: Annotated[str | None, typer.Option("--preset", help="Preset to start from; see `bay presets`")] = None,
    model: Annotated[str | None, typer.Option("--model", "-m", help="Model (default: the configured one)")] = None,
    url: Annotated[str | None, typer.Option("--url", help="Measure the running server at this URL")] = None,
    admin_key_env: Annotated[
        str | None,
        typer.Option(
            "--admin-key-env",
            metavar="NAME",
            help="Environment variable that holds the admin key for --url; ENGINEBAY_ADMIN_KEY is only sent to this host",
        ),
    ] = None,
    profile: Annotated[
        str | None, typer.Option("--profile", help="Arrival profile, such as poisson:rate=4,requests=200")
    ] = None,
    cycles: Annotated[int | None, typer.Option("--cycles", min=1, help="Number of repetitions")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume the last unfinished study, or the one named by --study")
    ] = False,
    study: Annotated[str | None, typer.Option("--study", help="Study to resume")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and run nothing")] = False,
    ignore_warnings: Annotated[
        bool,
        typer.Option(
            "--ignore-engine-warnings", "--ignore-backend-warnings", help="Measure even if an engine ignores a setting"
        ),
    ] = False,
    allow_mixed: Annotated[
        bool, typer.Option("--allow-mixed-engines", "--allow-mixed-backends", help="Also average across engines")
    ] = False,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            "--tokenizer",
            help="Stored model or tokenizer path, for prompts of exact length (default: the model's)",
        ),
    ] = None,
    runs: Annotated[Path | None, typer.Option("--runs", metavar="DIR", help="Directory with the runs")] = None,
    json: Annotated[bool, typer.Option("--json", help="Machine-readable output")] = False,
    set_: SetKeyOption = None,
    offline: OfflineOption = None,
    config_option: ConfigOption = None,
) -> None:
    """Benchmark engines, or a running server, under one workload."""
    config = pick_config_file(config, config_option)
    require_lab()
    from enginebay.lab.store.run_folders import runs_dir

    folder = runs or runs_dir()
    if admin_key_env is not None and not url and not resume:
        raise UsageError("--admin-key-env needs a running server", "add --url, or remove it")
    if resume:
        _refuse_changes({
            "CONFIG": config, "--engine": engine, "--preset": preset, "--model": model, "--url": url,
            "--profile": profile, "--cycles": cycles, "--tokenizer": tokenizer, "--set": set_, "--offline": offline,
            "--ignore-engine-warnings": ignore_warnings or None,
        })  # fmt: skip
        plan = _load_resumed_study(folder, study)
        if dry_run:
            _show_remaining(folder, plan, json)
            return
        note(f"resuming {plan.id}")
    elif study is not None:
        raise UsageError("--study needs --resume", "add --resume, or remove --study")
    else:
        flags = _build_flags(engine, model, profile, cycles, offline, set_)
        points, dropped, cycle_count, inputs = (
            _plan_url_points(config, preset, flags, url, model, tokenizer)
            if url
            else plan_engine_points(config, preset, flags, model, tokenizer, ignore_warnings, convert=not dry_run)
        )
        _show_dropped(dropped)
        _show_preflight(points, cycle_count)
        if dry_run:
            _show_plan(points, cycle_count, json)
            return
        from enginebay.lab.study.run_study import create_study

        plan = create_study(folder, points, cycle_count, inputs)
    from enginebay.lab.store.study_plan import lock_study

    with lock_study(folder, plan.id):  # before calibration, which would disturb a running study
        outcome = _run_study(folder, plan, admin_key_env)
    _print_results(outcome, folder, allow_mixed, json)


def _build_flags(
    engine: list[str] | None, model: str | None, profile: str | None, cycles: int | None, offline: bool | None,
    set_: list[str] | None,
) -> dict[str, Any]:  # fmt: skip
    engines = engine or []
    return {
        "engine": engines[0] if len(engines) == 1 else None,
        "engines": engines if len(engines) > 1 else None,
        "model": model,
        "profile": profile,
        "num_cycles": cycles,
        "offline": offline,
        **parse_assignments(set_ or []),
    }


def plan_engine_points(
    config: Path | None, preset: str | None, flags: dict[str, Any], model: str | None, tokenizer: str | None,
    ignore_warnings: bool, *, convert: bool = True,
) -> tuple[list[StudyPoint], list[DroppedPoint], int, dict[str, Any]]:  # fmt: skip
    from enginebay import environments
    from enginebay.cli.lab.study_points import build_engine_points
    from enginebay.cli.options.stack_options import StatusLine
    from enginebay.config.sweep_points import expand_points

    chosen, dropped = expand_points(config, preset=preset, flags=flags)
    if not chosen:
        raise ConfigError("no point can run", "; ".join(point.reasons[0] for point in dropped))
    for kind, _, version in (sweep_point.engine.partition("==") for sweep_point in chosen):
        if kind != AUTO:
            environments.find_environment(kind, version or None)  # fail before preparing the other engines
    progress, tokenizer_path = StatusLine(), _resolve_tokenizer(tokenizer)
    points = [
        point
        for sweep_point in chosen
        for point in build_engine_points(sweep_point, model, tokenizer_path, progress.update, convert=convert)
    ]
    progress.clear()
    warnings = {warning: None for point in points for warning in point.warnings}
    if warnings and not ignore_warnings:
        lines = "\n".join(f"  {line}" for line in warnings)
        raise ConfigError(
            f"an engine would ignore a setting\n{lines}", "remove the setting, or pass --ignore-engine-warnings"
        )
    return points, dropped, chosen[0].config.experiment.num_cycles, _record_inputs(config, preset, flags)


def _plan_url_points(
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


def _refuse_changes(options: Mapping[str, object]) -> None:
    """Reject options that would change the plan of a resumed study. Raises `UsageError`."""
    named = [name for name, value in options.items() if value is not None and value != []]
    if named:
        raise UsageError(
            f"--resume keeps the plan of the study: {', '.join(named)} cannot change it",
            "remove that, or start a new study without --resume",
        )


def _load_resumed_study(folder: Path, study: str | None) -> Study:
    from enginebay.lab.study.run_study import find_study_to_resume

    plan, problems = find_study_to_resume(folder, study)
    for problem in problems:
        note(f"skipped: {problem.message}")
    return plan


def _show_remaining(folder: Path, plan: Study, json: bool) -> None:
    """Print the runs that --resume would do."""
    from enginebay.lab.store.study_plan import find_finished_runs, list_remaining

    remaining = list_remaining(plan, find_finished_runs(folder, plan.id)[0])
    if json:
        steps = [{"point": step.point, "cycle": step.cycle, "label": step.label} for step in remaining]
        emit_json({"study": plan.id, "runs": len(plan.steps), "remaining": steps})
        return
    print_table(("point", "cycle", "label"), [(step.point + 1, step.cycle, step.label) for step in remaining])
    note(f"{len(remaining)} of {len(plan.steps)} runs of {plan.id} remain; nothing was run")


def _run_study(folder: Path, plan: Study, admin_key_env: str | None) -> StudyOutcome:
    from enginebay.cli.lab.study_progress import StudyProgress
    from enginebay.lab.loadgen.calibration import calibrate
    from enginebay.lab.study.run_point import StudyContext
    from enginebay.lab.study.run_study import run_study

    urls = [point.get("url") for point in plan.points]
    admin_headers = build_admin_headers(urls, admin_key_env, os.environ)
    progress = StudyProgress()
    try:
        progress.show_phase("calibrating the load generator")
        ceiling = calibrate()
        progress.clear()
        note(f"{plan.id}: {pluralize(len(plan.steps), 'run')} of {pluralize(len(plan.points), 'point')}")
        note(
            f"this client can receive {ceiling.tokens_per_s:,.0f} streamed tokens/s and send {ceiling.requests_per_s:,.0f} "
            f"requests/s ({pluralize(ceiling.processes, 'process', 'processes')})"
        )
        context = StudyContext(
            runs_dir=folder, study_id=plan.id, ceiling=ceiling, config=plan.config, headers=build_inference_headers(urls, os.environ),
            admin_headers=admin_headers, on_status=progress.show_phase, on_progress=progress.show_live, load_tokenizer=read_tokenizer,
        )  # fmt: skip
        return run_study(context, plan, progress.begin_run, progress.end_run)
    except KeyboardInterrupt:
        progress.clear()
        note(f"{plan.id} was interrupted; resume with `bay experiment --resume`")
        raise


def read_tokenizer(path: str) -> TextTokenizer:
    from enginebay.lab.workload.byte_tokenizer import BYTE_TOKENIZER_NAME, ByteTokenizer
    from enginebay.text.tokenization.tokenizer import load_tokenizer

    return ByteTokenizer() if path == BYTE_TOKENIZER_NAME else load_tokenizer(Path(path))


def _show_dropped(dropped: list[DroppedPoint]) -> None:
    for point in dropped:
        note(f"skipped {point.label}: {'; '.join(point.reasons)}")


def _show_preflight(points: list[StudyPoint], cycles: int) -> None:
    from enginebay.lab.search.preflight import check_requests_are_sent, check_tokenizers, predict_study_reasons

    check_requests_are_sent(points, cycles)
    check_tokenizers(points)
    for line in predict_study_reasons(points, cycles):
        note(line)


def _show_plan(points: list[StudyPoint], cycles: int, json: bool) -> None:
    if json:
        emit_json({"cycles": cycles, "points": [point.to_dict() for point in points]})
        return
    rows = [(number, point.label, point.model, _describe_workload(point)) for number, point in enumerate(points, 1)]
    print_table(("point", "label", "model", "workload"), rows)
    whole = (
        f"{pluralize(len(points), 'point')} in {pluralize(cycles, 'cycle')}: {pluralize(len(points) * cycles, 'run')}"
    )
    note(f"{whole}; nothing was run")


def _describe_workload(point: StudyPoint) -> str:
    from enginebay.lab.study.run_point import count_requests
    from enginebay.lab.study.study_point import plan_run

    plan = plan_run(point)
    lengths = {name: point.workload[name] for name in ("input_tokens", "output_tokens") if name in point.workload}
    tokens = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in lengths.items())
    count = count_requests(plan)
    requests = "all requests" if count is None else pluralize(count, "request")
    return f"{point.workload['kind']}: {requests}{f', {tokens}' if tokens else ''}"


def _print_results(outcome: StudyOutcome, folder: Path, allow_mixed: bool, json: bool) -> None:
    from enginebay.cli.lab.results import show_study_results

    show_study_results(outcome.study_id, outcome.runs, allow_mixed, json)
    if outcome.runs and not json:
        note(f"runs are in {folder}; `bay report {outcome.study_id} -o report.html` writes a page")
    if outcome.failed:
        raise EnginebayError(f"{pluralize(len(outcome.failed), 'point')} failed", "see the messages above")
    if outcome.runs and all(run.measures.get("answered") == 0 for run in outcome.runs):
        raise EnginebayError(
            "no request of the study was answered", f"see the messages above, or `bay results show {outcome.study_id}`"
        )
