"""Reading back what was written to a log."""

from __future__ import annotations

import os
from pathlib import Path

from enginebay.engines.llamacpp.last_words import LastWords, memory_ran_out


def test_only_what_came_since(tmp_path: Path) -> None:
    with (tmp_path / "log").open("ab", buffering=0) as log:
        log.write(b"out of memory, long ago\n")
        words = LastWords(log.fileno())
        assert words.text() == ""
        log.write(b"E llama_init: failed to allocate buffer for kv cache\n")
        assert words.text() == "E llama_init: failed to allocate buffer for kv cache\n"


def test_what_is_no_file_has_nothing_to_tell() -> None:
    reading, writing = os.pipe()
    try:
        words = LastWords(writing)
        os.write(writing, b"failed to allocate\n")
        assert words.text() == ""
    finally:
        os.close(reading)
        os.close(writing)


def test_words_for_want_of_memory() -> None:
    assert memory_ran_out("E ggml_aligned_malloc: insufficient memory (attempted to allocate 2880.00 MB)")
    assert memory_ran_out("cudaMalloc failed: out of memory")
    assert not memory_ran_out("E llama_model_load: unknown model architecture: 'foo'")
