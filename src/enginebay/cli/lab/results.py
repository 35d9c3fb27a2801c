"""`bay results`: list, show, compare, aggregate and export what the lab has measured."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from enginebay.cli.lab.lab_dependencies import require_lab
from enginebay.cli.output.console import emit_json, note, print_table

if TYPE_CHECKING:
    from enginebay.lab.store.run_errors import CorruptRun
    from enginebay.lab.store.run_reader import Run

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="List, show, compare, aggregate and export the lab's runs.",
)

JsonOption = Annotated[bool, typer.Option("--json", help="For programs")]
RunsOption = Annotated[Path | None, typer.Option("--runs", metavar="DIR", help="Where the runs are")]
RunsArgument = Annotated[
    list[str],
    typer.Argument(metavar="RUN...", help="Ids or their beginnings, study ids, or `latest` for the last study"),
]
AllowMixedOption = Annotated[
    bool,
    typer.Option("--allow-mixed-engines", "--allow-mixed-backends", help="Average over engines all the same"),
]

LISTED_FIGURES = ("output_tokens_per_s", "ttft_s.median", "ttft_s.p95", "e2e_s.p95", "j_per_output_token")
INVALID_MARK = " !"  # behind every number of an invalid run


@app.command("list")
def list_results(json: JsonOption = False, runs: RunsOption = None) -> None:
    """Every finished run, oldest first, and its verdict."""
    from enginebay.lab.store.run_export import describe_run
    from enginebay.lab.store.run_folders import list_partial_folders
    from enginebay.lab.store.run_reader import list_runs

    folder = _resolve_folder(runs)
    found, problems = list_runs(folder)
    if json:
        corrupt = [{"folder": str(one.folder), "wrong": one.wrong} for one in problems]
        listed = [{**describe_run(run), "folder": str(run.path), "measures": dict(run.measures)} for run in found]
        emit_json(
            {"runs": listed, "corrupt": corrupt, "unfinished": [str(one) for one in list_partial_folders(folder)]}
        )
        return
    print_table(
        ("RUN", "VERDICT", "ENGINE", "MODEL", "STUDY", "LABEL", *LISTED_FIGURES),
        [
            (
                run.id,
                run.status,
                run.engine,
                run.model,
                run.study_id,
                _shorten_label(run),
                *_format_numbers(run, LISTED_FIGURES),
            )
            for run in found
        ],
    )
    _explain_mark(any(run.status == "invalid" for run in found))
    note_corrupt(problems)
    if unfinished := list_partial_folders(folder):
        note(f"{len(unfinished)} not finished: being measured now, or killed (`bay experiment --resume` goes on)")


@app.command()
def show(run: Annotated[str, typer.Argument(metavar="RUN")], json: JsonOption = False, runs: RunsOption = None) -> None:
    """All that is known of a run, or of each run of a study."""
    require_lab()
    found = _select_runs(runs, [run])
    if json:
        shown = [dict(one.manifest) for one in found]
        emit_json(shown[0] if len(shown) == 1 else shown)
        return
    for one in found:
        _show_run(one)


@app.command()
def compare(names: RunsArgument, json: JsonOption = False, runs: RunsOption = None) -> None:
    """Engines or settings against each other, paired by cycle, with 95% intervals on the difference."""
    require_lab()
    from enginebay.lab.statistics.run_comparison import compare_runs

    found = compare_runs(_select_runs(runs, names))
    if json:
        emit_json(found)
        return
    for comparison in found:
        _show_comparison(comparison)
    if any(figure["difference"]["low"] is not None for one in found for figure in one["figures"].values()):
        note("each line has a 5% chance of a false alarm; intervals are of 95%")


@app.command()
def aggregate(
    names: RunsArgument, allow_mixed: AllowMixedOption = False, json: JsonOption = False, runs: RunsOption = None
) -> None:
    """The mean over the runs that repeat each other, with its 95% interval."""
    require_lab()
    from enginebay.lab.statistics.run_groups import aggregate_runs as put_together

    found = put_together(_select_runs(runs, names), allow_mixed)
    if json:
        emit_json(found)
        return
    _show_aggregates(found)


@app.command()
def export(
    names: RunsArgument,
    format: Annotated[str, typer.Option("--format", "-f", metavar="csv|json|markdown")] = "csv",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A file; default: the terminal")] = None,
    json: Annotated[bool, typer.Option("--json", help="The same as --format json")] = False,
    runs: RunsOption = None,
) -> None:
    """Runs for other programs or for a document."""
    from enginebay.errors import UsageError
    from enginebay.lab.store.run_export import EXPORT_FORMATS
    from enginebay.lab.store.run_export import export_runs as written

    chosen = "json" if json else format
    if chosen not in EXPORT_FORMATS:
        raise UsageError(f"--format {chosen} is not known", f"use one of: {', '.join(EXPORT_FORMATS)}")
    found = _select_runs(runs, names)
    text = written(found, chosen)
    if output is None:
        sys.stdout.write(text)
    else:
        output.write_text(text, encoding="utf-8")
        note(f"{len(found)} runs are in {output}")
    if invalid := [run.id for run in found if run.status == "invalid"]:
        note(f"invalid, and marked so: {', '.join(invalid)}")


def show_study_results(study_id: str, runs: Sequence[Run], allow_mixed: bool, json: bool) -> None:
    """What a study gave: each point's mean, and the points against the first, where there are several."""
    from enginebay.lab.statistics.run_comparison import compare_runs
    from enginebay.lab.statistics.run_groups import aggregate_runs as put_together
    from enginebay.lab.statistics.run_groups import group_runs

    if not runs:
        return
    means = [found for point in group_runs(runs) for found in put_together(point.runs, False)]
    mixed = put_together(runs, True) if allow_mixed and len({run.engine for run in runs}) > 1 else []
    against = compare_runs(runs) if len(group_runs(runs)) > 1 else []
    if json:
        emit_json({"study": study_id, "points": [*means, *mixed], "comparisons": against})
        return
    _show_aggregates([*means, *mixed])
    for comparison in against:
        _show_comparison(comparison)


def _resolve_folder(given: Path | None) -> Path:
    from enginebay.errors import UsageError
    from enginebay.lab.store.run_folders import runs_dir

    if given is not None and not given.is_dir():
        raise UsageError(f"there is no folder {given}", "give the folder of runs with --runs")
    return given or runs_dir()


def _select_runs(given: Path | None, names: list[str]) -> list[Run]:
    from enginebay.lab.store.run_selection import select_runs

    found, problems = select_runs(_resolve_folder(given), names)
    note_corrupt(problems)
    return found


def note_corrupt(problems: Sequence[CorruptRun]) -> None:
    """Name the runs that are left out of what is shown."""
    for problem in problems:
        note(f"not shown: {problem.message}")


def _shorten_label(run: Run) -> str:
    """What the point is called in its study, without the engine: that has its own column."""
    return run.label.removeprefix(f"{run.engine} ")


def _format_numbers(run: Run, names: tuple[str, ...]) -> list[str]:
    from enginebay.lab.measures.flat_figures import flatten_figures
    from enginebay.lab.measures.headlines import format_digits

    figures = flatten_figures(run.measures)
    mark = INVALID_MARK if run.status == "invalid" else ""
    return [f"{format_digits(figures[name])}{mark}" if name in figures else "-" for name in names]


def _explain_mark(invalid: bool) -> None:
    if invalid:
        note("! is a number of an invalid run: do not publish it; `bay results show RUN` says why")


def _show_run(run: Run) -> None:
    from enginebay.lab.measures.flat_figures import flatten_figures

    manifest = run.manifest
    rows: list[tuple[str, Any]] = [("run", run.id), ("verdict", run.status)]
    rows += [(f"  {reason.get('code')}", reason.get("message")) for reason in run.reasons]
    rows += [("folder", run.path), ("created", manifest["created"]), ("engine", run.engine), ("model", run.model)]
    for section in ("study", "profile", "workload", "seeds", "server", "environment"):
        rows += [(f"{section}.{key}", value) for key, value in manifest[section].items() if key != "facts"]
    print_table(("", ""), rows)
    figures = flatten_figures(run.measures)
    print()
    print_table(("FIGURE", "VALUE"), zip(figures, _format_numbers(run, tuple(figures)), strict=True))
    _explain_mark(run.status == "invalid")
    absent = {**manifest["absent"], **(run.measures.get("absent") or {})}
    if absent:
        print()
        print_table(("ABSENT", "WHY"), absent.items())
    _show_settings(run)
    print()


def _show_settings(run: Run) -> None:
    """Only what ran otherwise than it was asked for; `--json` has everything."""
    from enginebay.lab.measures.parity import diff_settings

    changed = [
        row for row in diff_settings(run.requested_settings, run.manifest["effective"]) if row.state == "changed"
    ]
    if changed:
        print()
        print_table(("SETTING", "ASKED", "RAN"), [(row.name, row.asked, row.effective) for row in changed])


def _show_comparison(found: dict[str, Any]) -> None:
    from enginebay.lab.measures.headlines import select_headlines

    a, b = found["a"], found["b"]
    for side, point in (("A", a), ("B", b)):
        print(f"{side}: {point['name']} ({_format_run_count(point)}, {point['verdict']})")
    for problem in found["problems"]:
        print(f"!  {problem}")
    rows = [
        _build_comparison_row(name, found["figures"][name], found["valid"])
        for name in select_headlines(found["figures"])
    ]
    if rows:
        print_table(("FIGURE", "A", "B", "B - A", "B / A", ""), rows)
    if found["parity"]:
        print()
        print_table(("PARITY", "B AGAINST A"), _build_parity_rows(found["parity"]))
    if found["settings"]:
        print()
        ran = [(name, one.get("a", "-"), one.get("b", "-")) for name, one in found["settings"].items()]
        print_table(("SETTING", "A RAN", "B RAN"), ran)
    if rows and not found["valid"]:
        note("! the difference is not to be believed: see the lines marked so above")
    print()


def _build_parity_rows(parity: dict[str, Any]) -> list[tuple[str, Any]]:
    told = {name: value for name, value in parity.items() if name not in ("absent", "first_divergence")}
    rows = [(name, float(f"{value:.4g}") if isinstance(value, float) else value) for name, value in told.items()]
    if parity["first_divergence"]:
        rows.append(("first_divergence (median position)", parity["first_divergence"]["median"]))
    return [*((name, value) for name, value in rows if value is not None), *parity["absent"].items()]


def _build_comparison_row(name: str, figure: dict[str, Any], valid: bool) -> tuple[str, ...]:
    from enginebay.lab.measures.headlines import format_digits

    mark = "" if valid else INVALID_MARK
    sides = [f"{format_digits(figure[side])}{mark}" for side in ("a", "b")]
    gaps = [f"{_format_interval(figure[key])}{mark}" for key in ("difference", "ratio")]
    return name, *sides, *gaps, figure["outlook"] if valid else "not to be believed: see above"


def _show_aggregates(points: Sequence[dict[str, Any]]) -> None:
    for point in points:
        _show_aggregate(point)
    _explain_mark(any(point["verdict"] == "invalid" for point in points))


def _show_aggregate(point: dict[str, Any]) -> None:
    from enginebay.lab.measures.headlines import select_headlines

    mixed = ", mixed engines: statistically invalid" if point["mixed_engines"] else ""
    print(f"{point['name']} ({_format_run_count(point)}, {point['verdict']}{mixed})")
    mark = INVALID_MARK if point["verdict"] == "invalid" else ""
    figures = point["figures"]
    print_table(
        ("FIGURE", "MEAN [95%]", "RUNS"),
        [(name, _format_interval(figures[name]) + mark, figures[name]["count"]) for name in select_headlines(figures)],
    )
    print()


def _format_run_count(point: dict[str, Any]) -> str:
    count = len(point["runs"])
    left_out = f", {len(point['left_out'])} invalid left out" if point["left_out"] else ""
    return f"{count} run{'' if count == 1 else 's'}{left_out}"


def _format_interval(found: dict[str, Any] | None) -> str:
    from enginebay.lab.measures.headlines import format_digits

    if found is None:
        return "-"
    if found["low"] is None or found["high"] is None:
        return format_digits(found["estimate"])
    return f"{format_digits(found['estimate'])} [{format_digits(found['low'])}, {format_digits(found['high'])}]"
