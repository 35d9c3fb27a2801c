"""`bay top`: a server's models, live, from its /metrics."""

from __future__ import annotations

import json as jsonlib
import sys
import time
from collections.abc import Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from enginebay.cli.admin.admin_client import KeyOption, UrlOption, fetch
from enginebay.cli.admin.server_address import ServerAddress, resolve_server
from enginebay.cli.output.console import emit_json
from enginebay.cli.output.console import print_table as print_table
from enginebay.cli.output.quit_key import WaitForQuit, listen_for_quit_key, wait_without_keys
from enginebay.errors import EnginebayError

if TYPE_CHECKING:
    from enginebay.cli.output.top_tables import ServerSummary, TopRow
    from enginebay.server.telemetry.prometheus_text import Samples

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Watch a server's models live.",
)
_TIMEOUT_S = 5.0


@app.command()
def top(
    url: UrlOption = None,
    key: KeyOption = None,
    interval: Annotated[float, typer.Option(min=0.1, max=3600, help="Seconds between looks")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Show one interval and end")] = False,
    json: Annotated[bool, typer.Option("--json", help="Machine-readable output: one document per interval")] = False,
) -> None:
    """Watch a server's models live: what runs, what waits, tokens per second, latencies of the last interval.

    On a terminal, q or Ctrl-C ends it.
    """
    server = resolve_server(url)
    if not json and not once and sys.stdout.isatty():
        with listen_for_quit_key() as wait:
            _show_live(watch(server, key, interval, wait))
        return
    for about, found in watch(server, key, interval):
        if json:
            _print_json(about, found, whole=once)
        else:
            _print_snapshot(about, found)
        if once:
            return


def _print_json(summary: ServerSummary, rows: list[TopRow], whole: bool) -> None:
    from enginebay.cli.output.top_tables import to_json

    if whole:
        emit_json(to_json(summary, rows))
    else:  # a line each, so that a reader knows where a document ends
        print(jsonlib.dumps(to_json(summary, rows)), flush=True)


def _print_snapshot(summary: ServerSummary, rows: list[TopRow]) -> None:
    from enginebay.cli.output.top_tables import TOP_COLUMNS, format_cells, format_headline

    print(format_headline(summary, rows), flush=True)
    print_table(TOP_COLUMNS, map(format_cells, rows))


def _show_live(looks: Iterator[tuple[ServerSummary, list[TopRow]]]) -> None:
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    from enginebay.cli.output.top_tables import format_headline

    first = list(islice(looks, 1))  # before the screen is taken: an error belongs on the plain terminal
    if not first:
        return
    with Live(Group(), screen=True, auto_refresh=False) as live:
        for about, found in chain(first, looks):
            live.update(Group(Text(format_headline(about, found)), Text(), _build_table(found)), refresh=True)


def _build_table(rows: list[TopRow]) -> Any:
    from rich.table import Table
    from rich.text import Text

    from enginebay.cli.output.top_tables import TOP_COLUMNS, format_cells

    shown = Table(box=None, pad_edge=False, header_style="bold")
    for place, column in enumerate(TOP_COLUMNS):
        shown.add_column(column, justify="left" if place < 2 else "right")
    for row in rows:
        *plain, errors = format_cells(row)
        shown.add_row(*map(Text, plain), Text(errors, style="red" if row.errors else ""))
    return shown


def watch(
    server: ServerAddress, key: str | None, interval: float, wait: WaitForQuit = wait_without_keys
) -> Iterator[tuple[ServerSummary, list[TopRow]]]:
    """One look per interval, until the wait says that it is time to end; the first comes after the first interval."""
    from enginebay.cli.output.top_tables import build_rows, build_summary

    before, before_s = scrape(server, key), time.monotonic()
    while not wait(interval):
        after, after_s = scrape(server, key), time.monotonic()
        seconds = after_s - before_s
        yield build_summary(before, after, seconds, time.time()), build_rows(before, after, seconds)
        before, before_s = after, after_s


def scrape(server: ServerAddress, key: str | None) -> Samples:
    """The metrics as they are now. Raises an error fit to print."""
    import urllib.error

    from enginebay.server.telemetry.prometheus_text import parse_metrics

    address = f"{server.url}/metrics"
    try:
        return parse_metrics(fetch(server, "metrics", key, timeout_s=_TIMEOUT_S).decode())
    except urllib.error.HTTPError as error:
        error.close()
        raise _to_metrics_error(address, error.code) from None
    except ValueError:
        raise EnginebayError(f"{address} does not answer with metrics", "is this an Enginebay server?") from None


def _to_metrics_error(address: str, status: int) -> EnginebayError:
    if status in (401, 403):
        return EnginebayError(
            f"the server refuses to show its metrics ({status})",
            "give a key: --key, or ENGINEBAY_API_KEY",
        )
    return EnginebayError(f"{address} answers {status}", "is this an Enginebay server?")
