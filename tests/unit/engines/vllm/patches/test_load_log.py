"""Load phases and errors from vLLM's log lines."""

from __future__ import annotations

import logging

import pytest

from enginebay.engines.vllm.patches.load_log import LoadLog, is_phase_line, parse_phases


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("Model loading took 14.9889 GiB memory and 2.412765 seconds", {"load": 2.412765}),
        ("Model loading took 14.98 GiB and 2.4 seconds", {"load": 2.4}),
        ("Loading weights took 1.23 seconds", {"load": 1.23}),
        ("torch.compile took 6.05 s in total", {"compile": 6.05}),
        ("torch.compile takes 6.05 s in total", {"compile": 6.05}),
        ("[model] torch.compile took 6.05 s in total", {"compile": 6.05}),
        ("torch.compile and initial profiling/warmup run together took 7.50 s in total", {"compile": 7.5}),
        ("init engine (profile, create kv cache, warmup model) took 9.10 s (compilation: 4.20 s)", {"compile": 4.2}),
        ("Graph capturing finished in 5 secs, took 0.61 GiB", {"capture": 5.0}),
        ("Encoder graph capturing finished in 5 secs, took 0.61 GiB (3 graphs)", {}),
        ("Starting to load model /m...", {}),
        ("Reloading and processing weights took 0.50 seconds", {}),
    ],
)
def test_one_line(line: str, found: dict[str, float]) -> None:
    assert parse_phases([(1, line)]) == found
    assert is_phase_line(line) == bool(found)


def test_the_whole_load_counts_rather_than_its_part() -> None:
    lines = ["Loading weights took 1.00 seconds", "Model loading took 1.0 GiB memory and 2.0 seconds"]
    assert parse_phases((1, line) for line in lines) == {"load": 2.0}


def test_parts_add_up_and_the_slowest_process_counts() -> None:
    lines = [(7, 3.0), (7, 4.0), (8, 5.0)]
    entries = [(process, f"torch.compile took {seconds} s in total") for process, seconds in lines]
    assert parse_phases(entries) == {"compile": 7.0}


def test_the_log_keeps_phases_and_errors() -> None:
    load_log = LoadLog()
    with load_log.capture():
        vllm = logging.getLogger("vllm.x")
        vllm.setLevel(logging.INFO)
        vllm.info("Loading weights took %.2f seconds", 1.5)
        vllm.info("something else")
        logging.getLogger("other").warning("Loading weights took 9.00 seconds")
        try:
            raise MemoryError("too big")
        except MemoryError:
            vllm.exception("it failed")
    assert load_log.read_phases() == {"load": 1.5}
    assert load_log.find_first_error() == ("MemoryError", "too big")
