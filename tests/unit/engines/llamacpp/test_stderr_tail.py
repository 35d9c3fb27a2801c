"""Reading back what was written to a log."""

from __future__ import annotations

import os
from pathlib import Path

from enginebay.engines.llamacpp.stderr_tail import StderrTail, is_out_of_memory


def test_reads_only_new_text(tmp_path: Path) -> None:
    with (tmp_path / "log").open("ab", buffering=0) as log:
        log.write(b"out of memory, long ago\n")
        words = StderrTail(log.fileno())
        assert words.read() == ""
        log.write(b"E llama_init: failed to allocate buffer for kv cache\n")
        assert words.read() == "E llama_init: failed to allocate buffer for kv cache\n"


def test_a_pipe_reads_as_empty() -> None:
    reading, writing = os.pipe()
    try:
        words = StderrTail(writing)
        os.write(writing, b"failed to allocate\n")
        assert words.read() == ""
    finally:
        os.close(reading)
        os.close(writing)


def test_out_of_memory_phrases() -> None:
    assert is_out_of_memory("E ggml_aligned_malloc: insufficient memory (attempted to allocate 2880.00 MB)")
    assert is_out_of_memory("cudaMalloc failed: out of memory")
    assert not is_out_of_memory("E llama_model_load: unknown model architecture: 'foo'")
