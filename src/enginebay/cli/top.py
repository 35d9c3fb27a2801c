"""`bay top`: a server's models, live, from its /metrics."""

from __future__ import annotations

import json as jsonlib
import sys
import time
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any

import typer

from enginebay.cli.admin_client import DEFAULT_URL, Key, Url, base_url, fetch
from enginebay.cli.output import emit_json
from enginebay.cli.output import table as print_table
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
    url: Url = DEFAULT_URL,
    key: Key = None,
    interval: Annotated[float, typer.Option(min=0.1, max=3600, help="Seconds between looks")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Show one interval and end")] = False,
    json: Annotated[bool, typer.Option("--json", help="Machine-readable output: one document per interval")] = False,
) -> None:
    """Watch a server's models live: what runs, what waits, tokens per second, latencies of the last interval."""
    looks = watch(metrics_url(url), key, interval)
    if not json and not once and sys.stdout.isatty():
        _show_live(looks)
        return
    for about, found in looks:
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

    first = next(looks)  # before the screen is taken: an error belongs on the plain terminal
    with Live(Group(), screen=True, auto_refresh=False) as live:
        for about, found in chain([first], looks):
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


def watch(address: str, key: str | None, interval: float) -> Iterator[tuple[Summary, list[Row]]]:
    """One look per interval, for ever; the first comes after the first interval."""
    from enginebay.cli.top_rows import rows, summary

    before, before_s = scrape(address, key), time.monotonic()
    while True:
        time.sleep(interval)
        after, after_s = scrape(address, key), time.monotonic()
        seconds = after_s - before_s
        yield summary(before, after, seconds, time.time()), rows(before, after, seconds)
        before, before_s = after, after_s


def metrics_url(url: str) -> str:
    """Where the metrics of the server at this address are."""
    return f"{base_url(url)}/metrics"


def scrape(address: str, key: str | None) -> Samples:
    """The metrics as they are now. Raises an error fit to print."""
    import urllib.error

    from enginebay.server.exposition import parse

    try:
        return parse(fetch(address, key, timeout_s=_TIMEOUT_S).decode())
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
