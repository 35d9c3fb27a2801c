from __future__ import annotations

from pathlib import Path

import pytest

from enginebay.engines.llamacpp.gguf import check_whole, read_arrays, read_header
from enginebay.engines.llamacpp.pieces import Pieces
from enginebay.errors import ModelInvalid
from tests.unit.text.tiny_gguf import tiny_llama


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(tiny_llama())
    return path


def test_the_header_tells_what_the_model_is(model: Path) -> None:
    header = read_header(model)
    assert header.architecture == "llama" and header.trained_context == 256
    assert header.of_model("attention.head_count") == 2
    assert header.of_model("no.such.key") is None


def test_a_whole_file_passes(model: Path) -> None:
    check_whole(model)


@pytest.mark.parametrize("keep", [6, 20, 200, 1500, -40])
def test_a_truncated_file_is_said_to_be_one(model: Path, keep: int) -> None:
    model.write_bytes(model.read_bytes()[:keep])
    with pytest.raises(ModelInvalid, match="truncated") as problem:
        check_whole(model)
    assert "\n" not in problem.value.message and problem.value.hint


def test_lengths_that_point_out_of_the_file_are_corruption(model: Path) -> None:
    data = bytearray(model.read_bytes())
    data[24:32] = b"\xff" * 8  # the length of the first key
    model.write_bytes(data)
    with pytest.raises(ModelInvalid, match="corrupt"):
        read_header(model)


@pytest.mark.parametrize(
    ("content", "says"), [(b"hello", "not a GGUF"), (b"", "cannot be read"), (None, "no model file")]
)
def test_other_files_are_refused(tmp_path: Path, content: bytes | None, says: str) -> None:
    path = tmp_path / "m.gguf"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ModelInvalid, match=says):
        read_header(path)


def test_an_unknown_version_is_refused(model: Path) -> None:
    data = bytearray(model.read_bytes())
    data[4] = 9
    model.write_bytes(data)
    with pytest.raises(ModelInvalid, match="version 9"):
        read_header(model)


def test_arrays_are_read_where_asked_for(model: Path) -> None:
    found = read_arrays(model, frozenset(("tokenizer.ggml.merges", "tokenizer.ggml.model")))
    assert found["tokenizer.ggml.merges"][0] == b"h e" and found["tokenizer.ggml.model"] == "gpt2"


def test_byte_level_tokens_become_bytes(model: Path) -> None:
    pieces = Pieces.of_file(model)
    assert pieces.single("hello") is not None and pieces.single(" world") is not None
    assert pieces.single("<|end|>") is None, "control tokens are no text"
