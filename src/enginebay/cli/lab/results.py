"""`bay results`: list, show, compare, aggregate and export benchmark runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from enginebay.cli.lab.lab_dependencies import require_lab
from enginebay.cli.options.command_app import JsonOption, create_app
from enginebay.cli.output.console import emit_json, note, print_table
from enginebay.cli.output.table_layout import Column
from enginebay.util.text_format import pluralize

if TYPE_CHECKING:
    from enginebay.lab.store.run_errors import CorruptRun
    from enginebay.lab.store.run_reader import Run

app = create_app(help="List, show, compare, aggregate and export benchmark runs.", no_args_is_help=True)

RunsOption = Annotated[Path | None, typer.Option("--runs", metavar="DIR", help="Directory with the runs")]
RunsArgument = Annotated[
    list[str], typer.Argument(metavar="RUN...", help="Run ids or prefixes, study ids, or `latest` for the last study")
]
AllowMixedOption = Annotated[
    bool, typer.Option("--allow-mixed-engines", "--allow-mixed-backends", help="Also average across engines")
]

LISTED_FIGURES = ("output_tokens_per_s", "ttft_s.median", "ttft_s.p95", "e2e_s.p95", "j_per_output_token")
INVALID_MARK = " !"  # after every number of an invalid run


@app.command("list")
def list_results(json: JsonOption = False, runs: RunsOption = None) -> None:
    """List finished runs with their verdicts, oldest first."""
    from enginebay.lab.store.run_export import describe_run
    from enginebay.lab.store.run_folders import list_partial_folders
    from enginebay.lab.store.run_reader import list_runs

    folder = _resolve_folder(runs)
    finished, problems = list_runs(folder)
    if json:
        corrupt = [{"folder": str(problem.folder), "wrong": problem.wrong} for problem in problems]
        listed = [{**describe_run(run), "folder": str(run.path), "measures": dict(run.measures)} for run in finished]
        emit_json({"runs": listed, "corrupt": corrupt, "unfinished": list(map(str, list_partial_folders(folder)))})
        return
    if not finished:
        note(f"no runs in {folder}; `bay experiment` makes some, and --runs names another folder")
    print_table(
        ("run", "verdict", "engine", "model", Column("study", rank=1), Column("label", rank=1), *LISTED_FIGURES),
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
            for run in finished
        ],
    )
    _explain_mark(any(run.status == "invalid" for run in finished))
    note_corrupt(problems)
    if unfinished := list_partial_folders(folder):
        note(f"{len(unfinished)} unfinished: running now, or killed (resume with `bay experiment --resume`)")


@app.command()
def show(run: Annotated[str, typer.Argument(metavar="RUN")], json: JsonOption = False, runs: RunsOption = None) -> None:
    """Show all details of a run, or of each run of a study."""
    require_lab()
    selected = _select_runs(runs, [run])
    if json:
        manifests = [dict(item.manifest) for item in selected]
        emit_json(manifests[0] if len(manifests) == 1 else manifests)
        return
    for item in selected:
        _show_run(item)


@app.command()
def compare(names: RunsArgument, json: JsonOption = False, runs: RunsOption = None) -> None:
    """Compare engines or settings, paired by cycle, with 95% intervals on the difference."""
    require_lab()
    from enginebay.lab.statistics.run_comparison import compare_runs

    comparisons = compare_runs(_select_runs(runs, names))
    if json:
        emit_json(comparisons)
        return
    for comparison in comparisons:
        _show_comparison(comparison)
    figures = (figure for comparison in comparisons for figure in comparison["figures"].values())
    if any(figure["difference"]["low"] is not None for figure in figures):
        note("intervals are 95%: each line has a 5% chance of a false positive")


@app.command()
def aggregate(
    names: RunsArgument, allow_mixed: AllowMixedOption = False, json: JsonOption = False, runs: RunsOption = None
) -> None:
    """Show the mean over repeated runs with its 95% interval."""
    require_lab()
    from enginebay.lab.statistics.run_groups import aggregate_runs

    points = aggregate_runs(_select_runs(runs, names), allow_mixed)
    if json:
        emit_json(points)
        return
    _show_aggregates(points)


@app.command()
def export(
    names: RunsArgument,
    format: Annotated[str, typer.Option("--format", "-f", metavar="csv|json|markdown")] = "csv",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Output file (default: standard output)")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Same as --format json")] = False,
    runs: RunsOption = None,
) -> None:
    """Export runs as CSV, JSON or Markdown."""
    from enginebay.errors import UsageError
    from enginebay.lab.store.run_export import EXPORT_FORMATS, export_runs

    chosen = "json" if json else format
    if chosen not in EXPORT_FORMATS:
        raise UsageError(f"unknown format: --format {chosen}", f"use one of: {', '.join(EXPORT_FORMATS)}")
    selected = _select_runs(runs, names)
    text = export_runs(selected, chosen)
    if output is None:
        sys.stdout.write(text)
    else:
        output.write_text(text, encoding="utf-8")
        note(f"wrote {pluralize(len(selected), 'run')} to {output}")
    if invalid := [run.id for run in selected if run.status == "invalid"]:
        note(f"marked invalid: {', '.join(invalid)}")


def show_study_results(study_id: str, runs: Sequence[Run], allow_mixed: bool, json: bool) -> None:
    """Print each point's mean, and compare the points with the first one."""
    from enginebay.lab.statistics.run_comparison import compare_runs
    from enginebay.lab.statistics.run_groups import aggregate_runs, group_runs

    if not runs:
        return
    means = [mean for point in group_runs(runs) for mean in aggregate_runs(point.runs, False)]
    mixed = aggregate_runs(runs, True) if allow_mixed and len({run.engine for run in runs}) > 1 else []
    comparisons = compare_runs(runs) if len(group_runs(runs)) > 1 else []
    if json:
        emit_json({"study": study_id, "points": [*means, *mixed], "comparisons": comparisons})
        return
    _show_aggregates([*means, *mixed])
    for comparison in comparisons:
        _show_comparison(comparison)


def _resolve_folder(runs: Path | None) -> Path:
    from enginebay.errors import UsageError
    from enginebay.lab.store.run_folders import runs_dir

    if runs is not None and not runs.is_dir():
        raise UsageError(f"no such directory: {runs}", "pass the directory with the runs as --runs")
    return runs or runs_dir()


def _select_runs(runs: Path | None, names: list[str]) -> list[Run]:
    from enginebay.lab.store.run_selection import select_runs

    selected, problems = select_runs(_resolve_folder(runs), names)
    note_corrupt(problems)
    return selected


def note_corrupt(problems: Sequence[CorruptRun]) -> None:
    """Print the runs that cannot be shown."""
    for problem in problems:
        note(f"not shown: {problem.message}")


def _shorten_label(run: Run) -> str:
    """Return the point's label without the engine, which has its own column."""
    return run.label.removeprefix(f"{run.engine} ")


def _format_numbers(run: Run, names: tuple[str, ...]) -> list[str]:
    from enginebay.lab.measures.flat_figures import flatten_figures
    from enginebay.util.number_format import format_digits

    figures = flatten_figures(run.measures)
    mark = INVALID_MARK if run.status == "invalid" else ""
    return [f"{format_digits(figures[name])}{mark}" if name in figures else "-" for name in names]


def _explain_mark(invalid: bool) -> None:
    if invalid:
        note("! marks a number of an invalid run: do not publish it; `bay results show RUN` explains why")


def _show_run(run: Run) -> None:
    from enginebay.lab.measures.flat_figures import flatten_figures

    manifest = run.manifest
    rows: list[tuple[str, Any]] = [("run", run.id), ("verdict", run.status)]
    rows += [("reason", f"{reason.get('code')}: {reason.get('message')}") for reason in run.reasons]
    rows += [("folder", run.path), ("created", manifest["created"]), ("engine", run.engine), ("model", run.model)]
    for section in ("study", "profile", "workload", "seeds", "server", "environment"):
        rows += [(f"{section}.{key}", value) for key, value in manifest[section].items() if key != "facts"]
    print_table(("field", "value"), rows)
    figures = flatten_figures(run.measures)
    print()
    print_table(("figure", "value"), zip(figures, _format_numbers(run, tuple(figures)), strict=True))
    _explain_mark(run.status == "invalid")
    absent = {**manifest["absent"], **(run.measures.get("absent") or {})}
    if absent:
        print()
        print_table(("absent", "why"), absent.items())
    _show_settings(run)
    print()


def _show_settings(run: Run) -> None:
    """Print the settings that ran with another value than requested; `--json` has all of them."""
    from enginebay.lab.measures.parity import diff_settings

    changed = [
        row for row in diff_settings(run.requested_settings, run.manifest["effective"]) if row.state == "changed"
    ]
    if changed:
        print()
        print_table(("setting", "requested", "effective"), [(row.name, row.asked, row.effective) for row in changed])


def _show_comparison(comparison: dict[str, Any]) -> None:
    from enginebay.lab.measures.headlines import select_headlines

    a, b = comparison["a"], comparison["b"]
    for side, point in (("A", a), ("B", b)):
        print(f"{side}: {point['name']} ({_format_run_count(point)}, {point['verdict']})")
    for problem in comparison["problems"]:
        print(f"!  {problem}")
    rows = [
        _build_comparison_row(name, comparison["figures"][name], comparison["valid"])
        for name in select_headlines(comparison["figures"])
    ]
    if rows:
        print_table(("figure", "a", "b", "b - a", "b / a", "result"), rows)
    if comparison["parity"]:
        print()
        print_table(("parity", "b against a"), _build_parity_rows(comparison["parity"]))
    if comparison["settings"]:
        print()
        settings = [(name, sides.get("a", "-"), sides.get("b", "-")) for name, sides in comparison["settings"].items()]
        print_table(("setting", "a", "b"), settings)
    if rows and not comparison["valid"]:
        note("! the difference is not reliable: see the marked lines above")
    print()


def _build_parity_rows(parity: dict[str, Any]) -> list[tuple[str, Any]]:
    plain = {name: value for name, value in parity.items() if name not in ("absent", "first_divergence")}
    rows = [(name, float(f"{value:.4g}") if isinstance(value, float) else value) for name, value in plain.items()]
    if parity["first_divergence"]:
        rows.append(("first_divergence (median position)", parity["first_divergence"]["median"]))
    return [*((name, value) for name, value in rows if value is not None), *parity["absent"].items()]


def _build_comparison_row(name: str, figure: dict[str, Any], valid: bool) -> tuple[str, ...]:
    from enginebay.util.number_format import format_digits

    mark = "" if valid else INVALID_MARK
    sides = [f"{format_digits(figure[side])}{mark}" for side in ("a", "b")]
    gaps = [f"{_format_interval(figure[key])}{mark}" for key in ("difference", "ratio")]
    return name, *sides, *gaps, figure["outlook"] if valid else "not reliable: see above"


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
        ("figure", "mean [95%]", "runs"),
        [(name, _format_interval(figures[name]) + mark, figures[name]["count"]) for name in select_headlines(figures)],
    )
    print()


def _format_run_count(point: dict[str, Any]) -> str:
    left_out = f", {len(point['left_out'])} invalid left out" if point["left_out"] else ""
    return f"{pluralize(len(point['runs']), 'run')}{left_out}"


def _format_interval(interval: dict[str, Any] | None) -> str:
    from enginebay.util.number_format import format_digits

    if interval is None:
        return "-"
    if interval["low"] is None or interval["high"] is None:
        return format_digits(interval["estimate"])
    low, high = format_digits(interval["low"]), format_digits(interval["high"])
    return f"{format_digits(interval['estimate'])} [{low}, {high}]"
