"""`bay top`: a live view of a server's models, from its /metrics."""

from __future__ import annotations

import json as jsonlib
import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain, islice
from typing import TYPE_CHECKING, Annotated

import typer

from enginebay.cli.admin.admin_client import KeyFileOption, KeyOption, ServerConfigOption, UrlOption, fetch
from enginebay.cli.admin.server_address import ServerAddress, resolve_server
from enginebay.cli.options.command_app import create_app
from enginebay.cli.output.console import emit_json, print_summary, print_table
from enginebay.errors import EnginebayError

if TYPE_CHECKING:
    from enginebay.cli.output.top_tables import ServerSummary, TopRow
    from enginebay.server.telemetry.prometheus_text import Samples

app = create_app(help="Watch a server's models live.")
_TIMEOUT_S = 5.0
_QUIT_KEYS = frozenset(b"qQ")
WaitForQuit = Callable[[float], bool]  # waits this many seconds; True: quit


@app.command()
def top(
    url: UrlOption = None,
    config: ServerConfigOption = None,
    key: KeyOption = None,
    key_file: KeyFileOption = None,
    interval: Annotated[float, typer.Option(min=0.1, max=3600, help="Seconds between refreshes")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Show one interval and exit")] = False,
    json: Annotated[bool, typer.Option("--json", help="Machine-readable output: one document per interval")] = False,
) -> None:
    """Watch a server's models live: running and waiting requests, tokens per second, latencies of the last interval.

    On a terminal, press q or Ctrl-C to quit.
    """
    server = resolve_server(url)
    if not json and not once and sys.stdout.isatty():
        with listen_for_quit_key() as wait:
            _show_live(watch(server, key, interval, wait))
        return
    for summary, rows in watch(server, key, interval):
        if json:
            _print_json(summary, rows, whole=once)
        else:
            _print_snapshot(summary, rows)
        if once:
            return


def _print_json(summary: ServerSummary, rows: list[TopRow], whole: bool) -> None:
    from enginebay.cli.output.top_tables import to_json

    if whole:
        emit_json(to_json(summary, rows))
    else:  # one document per line
        print(jsonlib.dumps(to_json(summary, rows)), flush=True)


def _print_snapshot(summary: ServerSummary, rows: list[TopRow]) -> None:
    from enginebay.cli.output.top_tables import build_top_table, format_headline

    print_summary(format_headline(summary, rows))
    print_table(*build_top_table(rows))


def _show_live(snapshots: Iterator[tuple[ServerSummary, list[TopRow]]]) -> None:
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    from enginebay.cli.output.top_tables import format_headline

    first = list(islice(snapshots, 1))  # before the alternate screen, so that an error stays visible
    if not first:
        return
    with Live(Group(), screen=True, auto_refresh=False) as live:
        for summary, rows in chain(first, snapshots):
            table = Text(_draw_table(rows, live.console.width), no_wrap=True)
            live.update(Group(Text(format_headline(summary, rows)), Text(), table), refresh=True)


def _draw_table(rows: list[TopRow], width: int) -> str:
    from enginebay.cli.output.table_layout import render_table, to_columns
    from enginebay.cli.output.top_tables import build_top_table

    columns, cells = build_top_table(rows)
    header, body = render_table(to_columns(columns), cells, width)
    return "\n".join([*header, *body])


def wait_without_keys(seconds: float) -> bool:
    time.sleep(seconds)
    return False


def watch(
    server: ServerAddress, key: str | None, interval: float, wait: WaitForQuit = wait_without_keys
) -> Iterator[tuple[ServerSummary, list[TopRow]]]:
    """Yield one snapshot per interval until `wait` returns True. The first comes after the first interval."""
    from enginebay.cli.output.top_tables import build_rows, build_summary

    before, before_s = scrape(server, key), time.monotonic()
    while not wait(interval):
        after, after_s = scrape(server, key), time.monotonic()
        seconds = after_s - before_s
        yield build_summary(before, after, seconds, time.time()), build_rows(before, after, seconds)
        before, before_s = after, after_s


def scrape(server: ServerAddress, key: str | None) -> Samples:
    """Fetch and parse the current metrics. Raises `EnginebayError`."""
    from enginebay.server.telemetry.prometheus_text import parse_metrics

    address = f"{server.url}/metrics"
    status, text = fetch(server, "metrics", key, timeout_s=_TIMEOUT_S)
    if status != 200:
        raise _to_metrics_error(address, status)
    try:
        return parse_metrics(text.decode())
    except ValueError:
        raise EnginebayError(f"{address} did not return metrics", "is this an Enginebay server?") from None


def _to_metrics_error(address: str, status: int) -> EnginebayError:
    if status in (401, 403):
        return EnginebayError(f"access to the metrics denied ({status})", "pass a key: --key or ENGINEBAY_API_KEY")
    return EnginebayError(f"{address} returned {status}", "is this an Enginebay server?")


@contextmanager
def listen_for_quit_key() -> Iterator[WaitForQuit]:
    """Yield a wait that `q` ends. Restores the terminal afterwards; without a terminal it only waits."""
    if sys.stdin is None or not sys.stdin.isatty():
        yield wait_without_keys
        return
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    settings = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor, termios.TCSANOW)  # keys arrive unbuffered; Ctrl-C still interrupts
        yield lambda seconds: _is_quit_pressed_within(descriptor, seconds)
    finally:
        with suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(descriptor, termios.TCSANOW, settings)


def _is_quit_pressed_within(descriptor: int, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while (left_s := until - time.monotonic()) > 0:
        if select.select([descriptor], [], [], left_s)[0]:
            try:
                typed = os.read(descriptor, 1024)
            except OSError:
                typed = b""
            if not typed or _QUIT_KEYS & {*typed}:  # empty: the terminal is gone
                return True
    return False
