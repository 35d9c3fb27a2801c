"""What may be pulled, and the progress of a pull."""

from __future__ import annotations

import json
from typing import Any

import pytest

from enginebay.errors import FetchFailed, InvalidRequest, RequestError, Unsupported
from enginebay.server.api.ollama.model_pull import PullRun, parse_pull_source
from enginebay.util.progress import track_progress


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("smollm2", "smollm2"),
        ("smollm2:latest", "smollm2"),
        ("hf:org/name", "hf:org/name"),
        ("hf.co/org/name", "hf:org/name"),
        ("https://huggingface.co/org/name", "hf:org/name"),
        ("hf:org/name:file.gguf", "hf:org/name:file.gguf"),
    ],
)
def test_sources(name: str, source: str) -> None:
    assert parse_pull_source(name) == source


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("llama3.2", Unsupported),
        ("/etc/passwd", Unsupported),
        ("file:/etc", Unsupported),
        ("pypi:evil==1/x", Unsupported),
        ("../models/x.gguf", Unsupported),
        ("hf.co/org/name:Q4_K_M", InvalidRequest),
        ("hf:../../x", InvalidRequest),
        ("hf:", InvalidRequest),
    ],
)
def test_other_sources_are_refused(name: str, kind: type[RequestError]) -> None:
    with pytest.raises(kind) as caught:
        parse_pull_source(name)
    assert caught.value.param == "model" and "hf:org/name" in caught.value.hint


def take(run: PullRun) -> list[Any]:
    return [json.loads(line) for line in run.take_lines().splitlines()]


def test_progress_in_numbers() -> None:
    run = PullRun("smollm2", offline=False)
    assert take(run) == []
    run("waiting")
    with track_progress("fetching x", 10, run, done=2) as advance:
        said, started = take(run)
        advance(3)
        [moved] = take(run)
    assert said == {"status": "waiting"}
    assert (started["status"], started["completed"], started["total"]) == ("fetching x", 2, 10)
    assert (moved["completed"], moved["digest"]) == (5, started["digest"])
    assert take(run) == []  # nothing new


def test_progress_without_a_total() -> None:
    run = PullRun("smollm2", offline=False)
    with track_progress("unpacking", None, run):
        [line] = take(run)
    assert line["completed"] == 0 and "total" not in line


def test_a_cancelled_pull_stops_at_the_next_piece() -> None:
    run = PullRun("smollm2", offline=False)
    with track_progress("fetching x", 10, run) as advance:
        run.cancel()
        with pytest.raises(FetchFailed, match="closed"):
            advance(1)
