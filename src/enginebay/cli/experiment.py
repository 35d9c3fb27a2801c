"""`bay experiment [CONFIG]`: measure engines, or a server that runs, and write down what came out."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from enginebay.cli.lab_keys import admin_headers, text_headers
from enginebay.cli.lab_parts import need_lab
from enginebay.cli.output import emit_json, note, table
from enginebay.cli.stack_options import Offline, SetKey
from enginebay.config.keys import AUTO
from enginebay.config.sources import assignment_flags
from enginebay.errors import ConfigError, EnginebayError, UsageError
from enginebay.wording import counted

if TYPE_CHECKING:
    from enginebay.config.points import Dropped
    from enginebay.lab.client.order import Target
    from enginebay.lab.points import Point
    from enginebay.lab.runs.study import Study
    from enginebay.lab.studies import Outcome
    from enginebay.lab.workload.spec import TextTokenizer

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def experiment(
    config: Annotated[Path | None, typer.Argument(metavar="[CONFIG]", help="A YAML file, as in docs/lab.md")] = None,
    *,
    engine: Annotated[
        list[str] | None,
        typer.Option("--engine", "-e", "--backend", help="An engine to measure; several times for several"),
    ] = None,
    preset: Annotated[str | None, typer.Option("--preset", help="Settings by name: see `bay presets`")] = None,
    model: Annotated[str | None, typer.Option("--model", "-m", help="The model (default: the configuration's)")] = None,
    url: Annotated[str | None, typer.Option("--url", help="Measure the server that runs at this address")] = None,
    admin_key_env: Annotated[
        str | None,
        typer.Option(
            "--admin-key-env",
            metavar="NAME",
            help="The variable with a key for the meters of --url; ENGINEBAY_ADMIN_KEY is sent to this host alone",
        ),
    ] = None,
    profile: Annotated[
        str | None, typer.Option("--profile", help="When requests are sent, like poisson:rate=4,requests=200")
    ] = None,
    cycles: Annotated[int | None, typer.Option("--cycles", min=1, help="How often everything is repeated")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the last study that is not finished, or with --study")
    ] = False,
    study: Annotated[str | None, typer.Option("--study", help="The study that --resume goes on with")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be run, and run nothing")] = False,
    ignore_warnings: Annotated[
        bool,
        typer.Option(
            "--ignore-engine-warnings", "--ignore-backend-warnings", help="Measure although an engine ignores a setting"
        ),
    ] = False,
    allow_mixed: Annotated[
        bool,
        typer.Option("--allow-mixed-engines", "--allow-mixed-backends", help="Also average over different engines"),
    ] = False,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            "--tokenizer", help="A stored model's name or a path, for prompts of exact lengths (default: the model's)"
        ),
    ] = None,
    runs: Annotated[Path | None, typer.Option("--runs", metavar="DIR", help="Where runs are kept")] = None,
    json: Annotated[bool, typer.Option("--json", help="The result for programs")] = False,
    set_: SetKey = None,
    offline: Offline = None,
) -> None:
    """Measure engines under one load, or a server that already runs."""
    need_lab()
    from enginebay.lab.runs.folders import runs_dir

    folder = runs or runs_dir()
    if admin_key_env is not None and not url and not resume:
        raise UsageError("--admin-key-env is for a server that runs", "give --url too, or leave it out")
    if resume:
        _refuse_changes({
            "CONFIG": config, "--engine": engine, "--preset": preset, "--model": model, "--url": url,
            "--profile": profile, "--cycles": cycles, "--tokenizer": tokenizer, "--set": set_, "--offline": offline,
            "--ignore-engine-warnings": ignore_warnings or None,
        })  # fmt: skip
        plan = _resumed(folder, study)
        if dry_run:
            _show_remaining(folder, plan, json)
            return
        note(f"going on with {plan.id}")
    elif study is not None:
        raise UsageError("--study is for a study that goes on", "give --resume too, or leave it out")
    else:
        flags = _flags(engine, model, profile, cycles, offline, set_)
        points, dropped, cycle_count, given = (
            _of_url(config, preset, flags, url, model, tokenizer)
            if url
            else of_engines(config, preset, flags, model, tokenizer, ignore_warnings, convert=not dry_run)
        )
        _show_dropped(dropped)
        _show_foreseen(points, cycle_count)
        if dry_run:
            _show_plan(points, cycle_count, json)
            return
        from enginebay.lab.studies import new_study

        plan = new_study(folder, points, cycle_count, given)
    from enginebay.lab.runs.study import held

    with held(folder, plan.id):  # from before the client is measured: that would disturb a study that runs
        outcome = _run(folder, plan, admin_key_env)
    _report(outcome, folder, allow_mixed, json)


def _flags(
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
        **assignment_flags(set_ or []),
    }


def of_engines(
    config: Path | None, preset: str | None, flags: dict[str, Any], model: str | None, tokenizer: str | None,
    ignore_warnings: bool, *, convert: bool = True,
) -> tuple[list[Point], list[Dropped], int, dict[str, Any]]:  # fmt: skip
    from enginebay.cli.experiment_points import engine_points
    from enginebay.cli.stack_options import Progress
    from enginebay.config.points import points
    from enginebay.fleet import environments

    chosen, dropped = points(config, preset=preset, flags=flags)
    if not chosen:
        raise ConfigError("nothing is left to run", "; ".join(one.reasons[0] for one in dropped))
    for kind, _, version in (one.engine.partition("==") for one in chosen):
        if kind != AUTO:
            environments.find(kind, version or None)  # what is missing is told before anything is made for the others
    progress, text = Progress(), _tokenizer(tokenizer)
    found = [point for one in chosen for point in engine_points(one, model, text, progress.say, convert=convert)]
    progress.clear()
    warnings = {warning: None for point in found for warning in point.warnings}
    if warnings and not ignore_warnings:
        lines = "\n".join(f"  {line}" for line in warnings)
        raise ConfigError(
            f"an engine would ignore what is asked for\n{lines}",
            "take it out, or measure all the same with --ignore-engine-warnings",
        )
    return found, dropped, chosen[0].config.experiment.num_cycles, _given(config, preset, flags)


def _of_url(
    config: Path | None, preset: str | None, flags: dict[str, Any], url: str, model: str | None, tokenizer: str | None
) -> tuple[list[Point], list[Dropped], int, dict[str, Any]]:
    from enginebay.cli.experiment_points import url_points
    from enginebay.config.load import load_config
    from enginebay.lab.api import find_model
    from enginebay.lab.client.order import Target

    target = Target(url, "", text_headers([url], os.environ))
    target.place  # noqa: B018 - an address that cannot be is refused before it is written down
    for name in ("engine", "engines"):
        if flags[name] is not None:
            raise UsageError("--engine cannot be chosen for a server that runs", "leave out --engine, or --url")
    loaded = load_config(config, preset=preset, flags={name: value for name, value in flags.items() if name != "model"})
    if loaded.experiment.sweep:
        raise ConfigError("a server that runs has its settings already", "leave out the sweep, or --url")
    name = model or loaded.model or find_model(target)
    kind = _engine_at(replace(target, model=name))
    points = url_points(loaded, url, name, _tokenizer(tokenizer) or _byte_tokenizer(kind) or _stored_tokenizer(name))
    return points, [], loaded.experiment.num_cycles, _given(config, preset, flags)


def _engine_at(target: Target) -> str:
    """The kind of engine behind a bay server; "" where nobody tells. Raises `UsageError` where it lacks the model."""
    from enginebay.lab.api import ServerUnusable
    from enginebay.lab.asking import check_model

    try:
        return check_model(target).kind
    except ServerUnusable:  # a plan needs no server, and the run says what is wrong with it
        return ""


def _byte_tokenizer(kind: str) -> str | None:
    from enginebay.engines import registry
    from enginebay.lab.workload.byte_tokenizer import NAME

    spec = registry.specs().get(kind)
    return NAME if spec is not None and spec.byte_tokens else None


def _tokenizer(given: str | None) -> str | None:
    """The path of a tokenizer: given as one, as the name of a model that is stored here, or the word for bytes."""
    from enginebay.lab.workload.byte_tokenizer import NAME

    if given is None or given == NAME or Path(given).exists():
        return given
    found = _stored_tokenizer(given)
    if found is None:
        raise UsageError(f"there is no tokenizer at {given!r}", "give the path of the model's files, or a stored model")
    return found


def _stored_tokenizer(model: str) -> str | None:
    from enginebay.errors import UnknownModel
    from enginebay.fleet.models import resolve

    try:
        return str(resolve(model).path)
    except UnknownModel:
        return None


def _given(config: Path | None, preset: str | None, flags: dict[str, Any]) -> dict[str, Any]:
    """What the user wrote, for the manifest."""
    set_flags = {name: value for name, value in flags.items() if value is not None}
    text = config.read_text(encoding="utf-8") if config is not None else None
    return {"file": text, "preset": preset, "flags": set_flags}


def _refuse_changes(given: Mapping[str, object]) -> None:
    """A study goes on as it was planned: what would change the plan is refused, since it would be ignored."""
    named = [name for name, value in given.items() if value is not None and value != []]
    if named:
        raise UsageError(
            f"--resume goes on with a study as it was planned: {', '.join(named)} cannot change it",
            "leave that out, or begin a new study without --resume",
        )


def _resumed(folder: Path, study: str | None) -> Study:
    from enginebay.lab.studies import study_to_resume

    plan, problems = study_to_resume(folder, study)
    for problem in problems:
        note(f"left out: {problem.message}")
    return plan


def _show_remaining(folder: Path, plan: Study, json: bool) -> None:
    """What --resume would run."""
    from enginebay.lab.runs.study import finished_runs, remaining

    left = remaining(plan, finished_runs(folder, plan.id)[0])
    if json:
        steps = [{"point": step.point, "cycle": step.cycle, "label": step.label} for step in left]
        emit_json({"study": plan.id, "runs": len(plan.steps), "remaining": steps})
        return
    table(("POINT", "CYCLE", "LABEL"), [(step.point + 1, step.cycle, step.label) for step in left])
    note(f"{len(left)} of {len(plan.steps)} runs of {plan.id} are left; nothing was run")


def _run(folder: Path, plan: Study, admin_key_env: str | None) -> Outcome:
    from enginebay.cli.experiment_progress import StudyProgress
    from enginebay.lab.client.ceiling import calibrate
    from enginebay.lab.conduct import Bench
    from enginebay.lab.studies import carry_out

    urls = [point.get("url") for point in plan.points]
    for_meters = admin_headers(urls, admin_key_env, os.environ)
    progress = StudyProgress()
    try:
        progress.say("measuring the load client itself")
        ceiling = calibrate()
        progress.clear()
        note(f"{plan.id}: {counted(len(plan.steps), 'run')} of {counted(len(plan.points), 'point')}")
        note(
            f"this client can take {ceiling.tokens_per_s:,.0f} streamed tokens/s and send {ceiling.requests_per_s:,.0f} "
            f"requests/s here ({counted(ceiling.processes, 'process', 'processes')})"
        )
        bench = Bench(
            runs=folder, study_id=plan.id, ceiling=ceiling, config=plan.config, headers=text_headers(urls, os.environ),
            admin_headers=for_meters, say=progress.say, live=progress.live, tokenizer=read_tokenizer,
        )  # fmt: skip
        return carry_out(bench, plan, progress.began, progress.ended)
    except KeyboardInterrupt:
        progress.clear()
        note(f"{plan.id} was interrupted; `bay experiment --resume` goes on with it")
        raise


def read_tokenizer(path: str) -> TextTokenizer:
    from enginebay.lab.workload.byte_tokenizer import NAME, ByteTokenizer
    from enginebay.text.tokenizer import load_tokenizer

    return ByteTokenizer() if path == NAME else load_tokenizer(Path(path))


def _show_dropped(dropped: list[Dropped]) -> None:
    for one in dropped:
        note(f"left out: {one.label}: {'; '.join(one.reasons)}")


def _show_foreseen(points: list[Point], cycles: int) -> None:
    from enginebay.lab.foreseen import check_sending, check_tokenizers, foreseen

    check_sending(points, cycles)
    check_tokenizers(points)
    for line in foreseen(points, cycles):
        note(line)


def _show_plan(points: list[Point], cycles: int, json: bool) -> None:
    if json:
        emit_json({"cycles": cycles, "points": [point.as_data() for point in points]})
        return
    rows = [(number, point.label, point.model, _described(point)) for number, point in enumerate(points, 1)]
    table(("POINT", "LABEL", "MODEL", "WORKLOAD"), rows)
    whole = f"{counted(len(points), 'point')} in {counted(cycles, 'cycle')}: {counted(len(points) * cycles, 'run')}"
    note(f"{whole}; nothing was run")


def _described(point: Point) -> str:
    from enginebay.lab.conduct import how_many
    from enginebay.lab.points import read_plan

    plan = read_plan(point)
    lengths = {name: point.workload[name] for name in ("input_tokens", "output_tokens") if name in point.workload}
    said = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in lengths.items())
    count = how_many(plan)
    requests = "all requests" if count is None else counted(count, "request")
    return f"{point.workload['kind']}: {requests}{f', {said}' if said else ''}"


def _report(outcome: Outcome, folder: Path, allow_mixed: bool, json: bool) -> None:
    from enginebay.cli.results import show_outcome

    show_outcome(outcome.study_id, outcome.runs, allow_mixed, json)
    if outcome.runs and not json:
        note(f"runs are in {folder}; `bay report {outcome.study_id} -o report.html` makes a page of them")
    if outcome.failed:
        raise EnginebayError(f"{len(outcome.failed)} of the points could not be run", "what was wrong is said above")
    if outcome.runs and all(run.measures.get("answered") == 0 for run in outcome.runs):
        raise EnginebayError(
            "no request of the study was answered",
            f"what was wrong is said above, and by `bay results show {outcome.study_id}`",
        )
