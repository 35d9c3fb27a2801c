"""`bay batch IN.jsonl OUT.jsonl`: run a file of requests in batches, resumable."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from enginebay.cli.event_loop import run_in_loop
from enginebay.cli.options import stack_options
from enginebay.cli.options.command_app import create_app
from enginebay.cli.options.sampling_options import with_sampling
from enginebay.cli.output.console import emit_json, note
from enginebay.config.resolved_config import Config
from enginebay.config.sections.config_keys import AUTO
from enginebay.engines import registry
from enginebay.fleet.batch_runner import (
    BatchDefaults,
    BatchRequest,
    BatchTally,
    list_unanswered,
    read_answers,
    read_requests,
    run_batch,
)
from enginebay.stack import AsyncStack

PROGRESS_INTERVAL_S = 10.0  # between progress lines off a terminal
_RETRY_HINT = "retry with --retry-failed"

app = create_app()


@app.command()
@with_sampling(logprobs="written with each answer")
def batch(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="IN.jsonl",
            help='One request per line: {"prompt": ...} or {"messages": ...}, with sampling parameters',
        ),
    ],
    target: Annotated[
        Path,
        typer.Argument(
            metavar="OUT.jsonl",
            help="One answer per line; requests already answered there are skipped and must be unchanged",
        ),
    ],
    *,
    model: Annotated[str, typer.Option("--model", "-m", help="Model for all requests")] = "smollm2",
    engine: stack_options.EngineOption = None,
    raw: stack_options.RawOption = False,
    concurrency: Annotated[
        int | None,
        typer.Option("--concurrency", min=1, help="Requests in flight (default: twice the engine's batch size)"),
    ] = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Retry requests that ended in an error")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON")] = False,
    config: stack_options.ConfigOption = None,
    set_: stack_options.SetOption = None,
    offline: stack_options.OfflineOption = None,
    strict: stack_options.StrictOption = False,
    sampling: dict[str, Any],
) -> int:
    """Run a file of requests. After an interruption, the same command resumes."""
    options = stack_options.build_stack_options(config, set_, offline, strict, engine)
    jobs = read_requests(source, _build_batch_defaults(model, engine, raw, options["config"], sampling))
    done = read_answers(target, retry_failed)
    remaining = list_unanswered(jobs, done, target)
    failed = sum(done[job.id].failed for job in jobs if job.id in done)
    note(
        f"{len(jobs)} requests, {len(jobs) - len(remaining) - failed} already answered in {target}{_format_failed_before(failed)}"
    )
    if not remaining:
        _print_json(BatchTally(), failed, as_json)
        return 1 if failed else 0
    progress = stack_options.StatusLine()
    stack = AsyncStack(model, say=progress.update, **options, **sampling)
    try:
        plan = stack.prepare()
    finally:
        progress.clear()
    stack_options.warn_unused_keys(set_, plan.spec.kind)
    try:
        tally = run_in_loop(_run_batch(stack, remaining, target, raw, concurrency, progress))
    except KeyboardInterrupt:
        answers = read_answers(target)
        answered = sum(job.id in answers and not answers[job.id].failed for job in jobs)
        note(f"interrupted: {answered} of {len(jobs)} answered; run the same command to resume")
        raise
    _print_json(tally, failed, as_json)
    rate = f", {tally.completion_tokens / tally.elapsed_s:.0f} tokens/s" if tally.elapsed_s else ""
    note(
        f"{tally.answered} answered, {tally.failed} failed, {tally.completion_tokens} tokens in {tally.elapsed_s:.1f} s{rate}"
    )
    if tally.failed:
        note(f"first failure: {tally.first_error}; {_RETRY_HINT}")
    return 1 if failed or tally.failed else 0


def _format_failed_before(count: int) -> str:
    return f", {count} failed earlier: {_RETRY_HINT}" if count else ""


def _print_json(tally: BatchTally, failed_before: int, as_json: bool) -> None:
    if as_json:
        counts = {"answered": tally.answered, "failed": tally.failed, "failed_before": failed_before}
        emit_json({**counts, "completion_tokens": tally.completion_tokens})


class LineProgress:
    """Progress off a terminal: a line every `PROGRESS_INTERVAL_S`."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._printed_at = time.monotonic()

    def advance(self, tally: BatchTally) -> None:
        if time.monotonic() - self._printed_at >= PROGRESS_INTERVAL_S:
            self._printed_at = time.monotonic()
            note(f"{tally.answered + tally.failed} of {self._total} done, {tally.completion_tokens} tokens")


def _build_batch_defaults(
    model: str, engine: str | None, raw: bool, config: Config, sampling: dict[str, Any]
) -> BatchDefaults:
    """Collect what flags and configuration set for all requests."""
    chosen = engine or config.engine_for(model)
    kind = chosen.partition("==")[0]
    configured = config.sampling if kind == AUTO else config.sampling_for(registry.get_spec(kind).kind, model)
    return BatchDefaults(model, chosen, raw, {**configured, **sampling})


async def _run_batch(
    stack: AsyncStack,
    jobs: list[BatchRequest],
    target: Path,
    raw: bool,
    concurrency: int | None,
    progress: stack_options.StatusLine,
) -> BatchTally:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    try:
        await stack.open()
    finally:
        progress.clear()
    try:
        stack_options.show_warnings(stack.warnings)
        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[tokens]} tokens"), TimeRemainingColumn())
        console = Console(stderr=True)
        lines = LineProgress(len(jobs))
        with Bar(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
            task = bar.add_task("batch", total=len(jobs), tokens=0)

            def advance(tally: BatchTally) -> None:
                bar.update(task, completed=tally.answered + tally.failed, tokens=tally.completion_tokens)
                if not console.is_terminal:
                    lines.advance(tally)

            def request(job: BatchRequest) -> Any:
                return stack.build_request(job.prompt, raw=raw or job.raw, **job.sampling)

            return await run_batch(stack.worker, jobs, request, target, concurrency, advance)
    finally:
        await stack.close()
