from __future__ import annotations

import json
import math
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from enginebay.cli.admin.top import listen_for_quit_key
from enginebay.cli.main import main
from enginebay.cli.output.top_tables import (
    TOP_COLUMNS,
    TopRow,
    build_rows,
    build_summary,
    build_top_table,
    format_cells,
    format_headline,
    to_json,
)
from enginebay.server.telemetry.prometheus_text import Samples, parse_metrics, render_metrics
from enginebay.server.telemetry.server_metrics import ServerMetrics

OWN = ("smollm2", "llamacpp")


def scraped(metrics: ServerMetrics) -> Samples:
    return parse_metrics(render_metrics(metrics.snapshot()).decode())


def work(metrics: ServerMetrics, seconds: float = 0.3) -> None:
    """One request of 20 tokens in, 100 out."""
    metrics.requests.child(*OWN, "chat", "200").inc()
    metrics.prompt_tokens.child(*OWN).inc(20)
    metrics.completion_tokens.child(*OWN).inc(100)
    metrics.time_to_first_token.child(*OWN).observe(seconds)
    metrics.inter_token_latency.child(*OWN).observe(seconds / 10, 99)


def only(found: list[TopRow]) -> TopRow:
    (row,) = found
    return row


def test_rates_and_latencies_are_of_the_interval_alone() -> None:
    metrics = ServerMetrics()
    for _ in range(50):
        work(metrics, 40.0)  # long ago, slow
    before = scraped(metrics)
    for _ in range(4):
        work(metrics)
    metrics.requests.child(*OWN, "completions", "500").inc()
    metrics.errors.child(*OWN, "engine_failed").inc(3)
    metrics.requests_running.child(*OWN).set(2)
    metrics.requests_waiting.child(*OWN).set(1)
    metrics.kv_cache_usage.child(*OWN).set(0.25)
    metrics.worker_memory.child(*OWN).set(2**31)
    row = only(build_rows(before, scraped(metrics), 2.0))
    assert (row.model, row.engine, row.running, row.waiting, row.errors) == (*OWN, 2, 1, 3)
    assert (row.requests_per_s, row.prompt_tokens_per_s, row.completion_tokens_per_s) == (2.5, 40, 200)
    assert row.ttft_p50_s == pytest.approx(0.375)  # the middle of 0.25 to 0.5
    assert row.ttft_p95_s == pytest.approx(0.4875)
    assert row.inter_token_p50_s == pytest.approx(0.025)  # the middle of 0.02 to 0.03
    assert (row.kv_used_ratio, row.memory_bytes) == (0.25, 2**31)


def test_replicas_have_columns_where_a_model_may_have_several() -> None:
    metrics = ServerMetrics()
    metrics.requests.child("single", "llamacpp", "chat", "200").inc()
    metrics.replicas_ready.child(*OWN).set(3)
    for name, running in (("smollm2", 4), ("smollm2#2", 0), ("smollm2#10", 2)):
        metrics.replica_running.child(*OWN, name).set(running)
    metrics.replica_prompt_tokens.child(*OWN, "smollm2").inc(1000)
    before = scraped(metrics)
    metrics.replica_prompt_tokens.child(*OWN, "smollm2").inc(100)
    metrics.replica_cached_tokens.child(*OWN, "smollm2#2").inc(25)
    rows = build_rows(before, scraped(metrics), 2.0)
    single, several = rows
    assert single.replicas is None and several.replicas == {"smollm2": 4, "smollm2#2": 0, "smollm2#10": 2}
    columns, (plain, cells) = build_top_table(rows)
    names = [column if isinstance(column, str) else column.name for column in columns]
    assert cells[names.index("replicas")] == "3: 4,0,2" and cells[names.index("cached")] == "25%"
    assert plain[names.index("replicas")] == "-" == plain[names.index("cached")]
    assert names.index("cached") + 1 == names.index("kv") and len(plain) == len(cells) == len(columns)
    assert to_json(build_summary(before, before, 1, 0), rows)["models"][1]["replicas"]["smollm2#10"] == 2
    for name in ("smollm2#11", "smollm2#12"):
        metrics.replica_running.child(*OWN, name).set(1)
    columns, (_, cells) = build_top_table(build_rows(before, scraped(metrics), 2.0))
    assert cells[2] == "5: 0-4"


def test_an_idle_interval_has_no_latencies() -> None:
    metrics = ServerMetrics()
    work(metrics)
    scrape = scraped(metrics)
    row = only(build_rows(scrape, scrape, 1.0))
    assert (row.requests_per_s, row.completion_tokens_per_s) == (0, 0)
    assert row.ttft_p50_s is row.inter_token_p95_s is row.kv_used_ratio is row.running is None


def test_a_restarted_server_counts_from_zero() -> None:
    old, new = ServerMetrics(), ServerMetrics()
    for _ in range(10):
        work(old)
    work(new, 0.02)
    row = only(build_rows(scraped(old), scraped(new), 1.0))
    assert (row.requests_per_s, row.completion_tokens_per_s) == (1, 100)
    assert row.ttft_p50_s == pytest.approx(0.015)


def test_a_model_that_was_not_there_before_is_shown() -> None:
    metrics = ServerMetrics()
    before = scraped(metrics)
    assert build_rows(before, before, 1.0) == []
    metrics.requests_running.child("new", "fake").set(1)
    metrics.requests_running.child("new", "vllm").set(1)
    assert [(row.model, row.engine) for row in build_rows(before, scraped(metrics), 1.0)] == [
        ("new", "fake"),
        ("new", "vllm"),
    ]


def test_scrapes_of_the_metrics_are_no_requests() -> None:
    metrics = ServerMetrics()
    work(metrics)
    before = scraped(metrics)
    metrics.requests.child("(none)", "(none)", "metrics", "200").inc(5)
    row = only(build_rows(before, scraped(metrics), 1.0))
    assert (row.model, row.requests_per_s) == (OWN[0], 0)
    metrics.requests.child("(none)", "(none)", "models", "200").inc(2)
    assert [row.requests_per_s for row in build_rows(before, scraped(metrics), 1.0)] == [2, 0]


def test_the_summary_is_of_the_whole_server() -> None:
    metrics = ServerMetrics()
    metrics.process_start.child().set(1000)
    before = scraped(metrics)
    metrics.connections.child().set(3)
    metrics.rate_limited.child("alice").inc(4)
    metrics.rejected.child("queue_full").inc(2)
    work(metrics)
    after = scraped(metrics)
    about = build_summary(before, after, 2.0, 1000 + 7200)
    assert (about.connections, about.uptime_s, about.refused_per_s) == (3, 7200, 3)
    line = format_headline(about, build_rows(before, after, 2.0))
    assert "up 2 h · 3 connections · 0.5 req/s · 50.0 tok/s out · 3.0 refused/s" in line
    assert line.startswith(f"enginebay {about.version} ") and about.version


def test_cells_are_short_and_never_pretend() -> None:
    nothing = TopRow("m", "e", None, None, 0, 0, 0, None, None, None, None, None, None, 0)
    assert format_cells(nothing) == ["m", "e", "-", "-", "0", "0", "0", "-", "-", "-", "-", "-", "-", "0"]
    full = TopRow("m", "e", 2, 1, 2.5, 40, 12345, 0.0123, 0.3, 1.25, math.inf, 0.256, 2.5 * 2**30, 7)
    assert format_cells(full) == [
        "m", "e", "2", "1", "2.5", "40.0", "12,345", "12.3 ms", "300 ms", "1.2 s", "off scale", "26%", "2.5 GiB", "7",
    ]  # fmt: skip
    assert len(format_cells(full)) == len(TOP_COLUMNS)


def test_gpus_have_a_column_where_there_are_any() -> None:
    metrics = ServerMetrics()
    work(metrics)
    assert build_top_table(build_rows({}, scraped(metrics), 1.0))[0] == list(TOP_COLUMNS)
    for gpu in ("3", "2"):
        metrics.gpu_reserved.child(*OWN, gpu, "linked GPUs").set(1)
    rows = build_rows({}, scraped(metrics), 1.0)
    assert (only(rows).gpus, only(rows).placement) == ((2, 3), "linked GPUs")
    columns, cells = build_top_table(rows)
    assert columns[2] == "gpu" and cells[0][2] == "2,3" and len(cells[0]) == len(columns)


def test_a_models_name_moves_no_cursor() -> None:
    nasty = TopRow("\x1b[2J", "e\n", None, None, 0, 0, 0, None, None, None, None, None, None, 0)
    assert all(cell.isprintable() for cell in format_cells(nasty))


def test_json_has_no_infinity() -> None:
    row = TopRow("m", "e", 2, 1, 2.5, 40, 200, 0.1, math.inf, None, None, 0.5, 1.0, 0)
    about = build_summary({}, {}, 1.0, 0.0)
    found = json.loads(json.dumps(to_json(about, [row]), allow_nan=False))
    assert found["models"][0]["ttft_p50_s"] == 0.1 and found["models"][0]["ttft_p95_s"] is None
    assert found["server"]["version"] == ""


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    """A server with fixed metrics that grow between scrapes."""
    servers: list[ThreadingHTTPServer] = []

    def start(answer: Callable[[str, str | None], tuple[int, bytes]]) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, body = answer(self.path, self.headers["Authorization"])
                self.send_response(status)
                if status == 302:
                    self.send_header("Location", "/elsewhere")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        return f"http://127.0.0.1:{server.server_address[1]}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def busy(key: str | None = None) -> Callable[[str, str | None], tuple[int, bytes]]:
    metrics = ServerMetrics()

    def answer(path: str, authorization: str | None) -> tuple[int, bytes]:
        if path != "/metrics":
            return 404, b""
        if key is not None and authorization != f"Bearer {key}":
            return 401, b"{}"
        work(metrics)
        return 200, render_metrics(metrics.snapshot())

    return answer


def test_one_look_as_json(serve: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--url", serve(busy()), "--once", "--json", "--interval", "0.1"]) == 0
    (model,) = json.loads(capsys.readouterr().out)["models"]
    assert (model["model"], model["engine"]) == OWN
    assert 0 < model["requests_per_s"] <= 10 and model["ttft_p50_s"] == pytest.approx(0.375)


def test_one_look_as_a_table(serve: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--url", serve(busy()), "--once", "--interval", "0.1"]) == 0
    out, about = capsys.readouterr()
    header, line = out.splitlines()
    assert about.startswith("enginebay ") and "TTFT P95" in header.split("\t")
    assert line.split("\t")[:2] == list(OWN)


@pytest.mark.parametrize("variable", ["ENGINEBAY_ADMIN_KEY", "ENGINEBAY_API_KEY", None])
def test_the_key_comes_from_the_option_or_the_environment(
    serve: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, variable: str | None
) -> None:
    for name in ("ENGINEBAY_ADMIN_KEY", "ENGINEBAY_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    command = ["top", "--url", serve(busy("secret")), "--once", "--json", "--interval", "0.1"]
    assert main(command) == 1
    told = capsys.readouterr().err
    assert "401" in told and "ENGINEBAY_API_KEY" in told
    if variable is None:
        command += ["--key", "secret"]
    else:
        monkeypatch.setenv(variable, "secret")
    assert main(command) == 0


def test_an_unreachable_server_is_two_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--url", "http://127.0.0.1:1", "--once"]) == 1
    told = capsys.readouterr()
    assert told.err.splitlines() == [
        "bay: no server responds at http://127.0.0.1:1: Connection refused",
        "     start one with `bay serve`, or pass --url",
    ]
    assert not told.out


@pytest.mark.parametrize(
    "answer", [(404, b""), (500, b"oops"), (302, b""), (200, b"<html>hi</html>"), (200, b"\xff\xfe")]
)
def test_a_server_of_another_kind_is_no_traceback(
    serve: Any, capsys: pytest.CaptureFixture[str], answer: tuple[int, bytes]
) -> None:
    asked: list[str] = []

    def reply(path: str, _: str | None) -> tuple[int, bytes]:
        asked.append(path)
        return answer

    assert main(["top", "--url", serve(reply), "--once", "--key", "secret"]) == 1
    assert "is this an Enginebay server?" in capsys.readouterr().err
    assert asked == ["/metrics"]  # a redirect is not followed: the key would go along


@pytest.mark.parametrize(("end", "code"), [("signal", 130), ("q", 0), ("xyQ", 0), ("\x03", 130)])
def test_on_a_terminal_it_is_drawn_until_ended(serve: Any, end: str, code: int) -> None:
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    shown = drawn(serve(busy()), theirs)
    seen = b""
    try:
        while seen.count(b"smollm2") < 3:
            seen += os.read(ours, 65536)
        if end == "signal":
            shown.send_signal(signal.SIGINT)
        else:
            os.write(ours, end.encode())
        deadline = time.monotonic() + 30
        while shown.poll() is None or is_readable(ours, 0):
            assert time.monotonic() < deadline
            seen += os.read(ours, 65536) if is_readable(ours, 0.05) else b""
        assert shown.returncode == code
        assert termios.tcgetattr(theirs) == before
    finally:
        shown.kill()
        shown.wait()
        os.close(ours)
        os.close(theirs)
    assert b"llamacpp" in seen and b"Traceback" not in seen
    assert b"\x1b[?1049h" in seen and b"\x1b[?1049l" in seen  # the screen was taken and given back


def test_the_terminal_is_given_back_after_an_error(serve: Any) -> None:
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    try:
        shown = drawn(serve(lambda *_: (500, b"")), theirs)
        assert shown.wait(60) == 1
        assert termios.tcgetattr(theirs) == before
    finally:
        os.close(ours)
        os.close(theirs)


def is_readable(descriptor: int, within_s: float) -> bool:
    return bool(select.select([descriptor], [], [], within_s)[0])


def drawn(url: str, terminal: int) -> subprocess.Popen[bytes]:
    """Run `bay top` with this as its controlling terminal, so that Ctrl-C reaches it."""
    command = [sys.executable, "-m", "enginebay.cli.main", "top", "--url", url, "--interval", "0.1"]
    environ = {**os.environ, "TERM": "xterm", "COLUMNS": "200", "LINES": "20"}
    code = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
    return subprocess.Popen(
        [sys.executable, "-c", code, *command],
        stdin=terminal, stdout=terminal, stderr=terminal, env=environ, start_new_session=True,
    )  # fmt: skip


def test_a_terminal_that_goes_away_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(theirs) as terminal:
        monkeypatch.setattr("sys.stdin", terminal)
        with listen_for_quit_key() as wait:
            os.close(ours)
            assert wait(30.0)
