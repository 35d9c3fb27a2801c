from __future__ import annotations

from pathlib import Path

import pytest

from enginebay.engines.llamacpp.library import read_gguf_model
from enginebay.engines.llamacpp.token_pieces import TokenPieces
from enginebay.errors import ModelInvalid
from enginebay.text.gguf.gguf_reader import GgufFile
from tests.unit.text.tiny_gguf import build_tiny_llama


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(build_tiny_llama())
    return path


def test_the_file_describes_the_model(model: Path) -> None:
    file = read_gguf_model(model)
    assert file.architecture == "llama" and file.context_length == 256
    assert file.get_number("attention.head_count") == 2
    assert file.get_number("no.such.key") == 0


def test_the_largest_of_per_layer_numbers_is_used() -> None:
    file = GgufFile(Path("m"), 3, {"general.architecture": "x", "x.attention.head_count_kv": (0, 8, 4)}, ())
    assert file.get_number("attention.head_count_kv") == 8


@pytest.mark.parametrize("keep", [6, 20, 200, 1500, -40])
def test_a_truncated_file_is_refused(model: Path, keep: int) -> None:
    model.write_bytes(model.read_bytes()[:keep])
    with pytest.raises(ModelInvalid) as problem:
        read_gguf_model(model)
    assert "\n" not in problem.value.message and problem.value.hint


@pytest.mark.parametrize(
    ("content", "says"), [(b"hello", "not a GGUF"), (b"", "not a GGUF"), (None, "model file not found")]
)
def test_other_files_are_refused(tmp_path: Path, content: bytes | None, says: str) -> None:
    path = tmp_path / "m.gguf"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ModelInvalid, match=says) as problem:
        read_gguf_model(path)
    assert problem.value.hint


def test_byte_level_tokens_become_bytes(model: Path) -> None:
    pieces = TokenPieces.from_gguf(read_gguf_model(model))
    assert pieces.find_token("hello") is not None and pieces.find_token(" world") is not None
    assert pieces.find_token("<|end|>") is None, "control tokens are no text"


def test_byte_tokens_and_word_marks_become_bytes() -> None:
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ("<0x0A>", "▁a"),
        "tokenizer.ggml.token_type": (6, 1),
    }
    pieces = TokenPieces.from_gguf(GgufFile(Path("m"), 3, metadata, ()))
    assert (pieces.find_token("\n"), pieces.find_token(" a")) == (0, 1)
