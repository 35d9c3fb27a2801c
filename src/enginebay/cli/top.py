"""`bay top`: a server's models, live, from its /metrics."""

from __future__ import annotations

import json as jsonlib
import sys
import time
from collections.abc import Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from enginebay.cli.admin_client import Key, Url, fetch
from enginebay.cli.output import emit_json
from enginebay.cli.output import table as print_table
from enginebay.cli.quit_key import Wait, only_wait, quit_key
from enginebay.cli.server_address import Server, server_at
from enginebay.errors import EnginebayError

if TYPE_CHECKING:
    from enginebay.cli.top_rows import Row, Summary
    from enginebay.server.exposition import Samples

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Watch a server's models live.",
)
_TIMEOUT_S = 5.0


@app.command()
def top(
    url: Url = None,
    key: Key = None,
    interval: Annotated[float, typer.Option(min=0.1, max=3600, help="Seconds between looks")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Show one interval and end")] = False,
    json: Annotated[bool, typer.Option("--json", help="Machine-readable output: one document per interval")] = False,
) -> None:
    """Watch a server's models live: what runs, what waits, tokens per second, latencies of the last interval.

    On a terminal, q or Ctrl-C ends it.
    """
    server = server_at(url)
    if not json and not once and sys.stdout.isatty():
        with quit_key() as wait:
            _show_live(watch(server, key, interval, wait))
        return
    for about, found in watch(server, key, interval):
        if json:
            _print_json(about, found, whole=once)
        else:
            _print(about, found)
        if once:
            return


def _print_json(about: Summary, found: list[Row], whole: bool) -> None:
    from enginebay.cli.top_rows import to_json

    if whole:
        emit_json(to_json(about, found))
    else:  # a line each, so that a reader knows where a document ends
        print(jsonlib.dumps(to_json(about, found)), flush=True)


def _print(about: Summary, found: list[Row]) -> None:
    from enginebay.cli.top_rows import COLUMNS, cells, headline

    print(headline(about, found), flush=True)
    print_table(COLUMNS, map(cells, found))


def _show_live(looks: Iterator[tuple[Summary, list[Row]]]) -> None:
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    from enginebay.cli.top_rows import headline

    first = list(islice(looks, 1))  # before the screen is taken: an error belongs on the plain terminal
    if not first:
        return
    with Live(Group(), screen=True, auto_refresh=False) as live:
        for about, found in chain(first, looks):
            live.update(Group(Text(headline(about, found)), Text(), _table(found)), refresh=True)


def _table(found: list[Row]) -> Any:
    from rich.table import Table
    from rich.text import Text

    from enginebay.cli.top_rows import COLUMNS, cells

    shown = Table(box=None, pad_edge=False, header_style="bold")
    for place, column in enumerate(COLUMNS):
        shown.add_column(column, justify="left" if place < 2 else "right")
    for row in found:
        *plain, errors = cells(row)
        shown.add_row(*map(Text, plain), Text(errors, style="red" if row.errors else ""))
    return shown


def watch(
    server: Server, key: str | None, interval: float, wait: Wait = only_wait
) -> Iterator[tuple[Summary, list[Row]]]:
    """One look per interval, until the wait says that it is time to end; the first comes after the first interval."""
    from enginebay.cli.top_rows import rows, summary

    before, before_s = scrape(server, key), time.monotonic()
    while not wait(interval):
        after, after_s = scrape(server, key), time.monotonic()
        seconds = after_s - before_s
        yield summary(before, after, seconds, time.time()), rows(before, after, seconds)
        before, before_s = after, after_s


def scrape(server: Server, key: str | None) -> Samples:
    """The metrics as they are now. Raises an error fit to print."""
    import urllib.error

    from enginebay.server.exposition import parse

    address = f"{server.url}/metrics"
    try:
        return parse(fetch(server, "metrics", key, timeout_s=_TIMEOUT_S).decode())
    except urllib.error.HTTPError as error:
        error.close()
        raise _refused(address, error.code) from None
    except ValueError:
        raise EnginebayError(f"{address} does not answer with metrics", "is this an Enginebay server?") from None


def _refused(address: str, status: int) -> EnginebayError:
    if status in (401, 403):
        return EnginebayError(
            f"the server refuses to show its metrics ({status})",
            "give a key: --key, or ENGINEBAY_API_KEY",
        )
    return EnginebayError(f"{address} answers {status}", "is this an Enginebay server?")
