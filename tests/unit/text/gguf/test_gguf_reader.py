from __future__ import annotations

import random
import struct
from collections import Counter
from pathlib import Path

import pytest

from enginebay.errors import EnginebayError, ModelInvalid
from enginebay.text.chat.chat_renderer import load_renderer
from enginebay.text.gguf.gguf_reader import is_gguf, read_gguf
from enginebay.text.tokenization.tokenizer import load_tokenizer
from tests.unit.text.tiny_gguf import build_gguf, build_tiny_llama


def read(folder: Path, content: bytes):
    path = folder / "model.gguf"
    path.write_bytes(content)
    return read_gguf(path)


def one_tensor(**metadata):
    return build_gguf({"general.architecture": "llama", **metadata}, {"w": ((4, 2), bytes(32))})


def test_reads_the_metadata(tmp_path):
    file = read(tmp_path, build_tiny_llama())
    assert file.architecture == "llama"
    assert file.context_length == 256
    assert file.quantisation == "F32"
    assert file.chat_template.startswith("{% for m in messages %}")
    assert file.metadata["tokenizer.ggml.tokens"][1] == "<|im_start|>"
    assert file.metadata["tokenizer.ggml.token_type"][:4] == (3, 3, 3, 1)


def test_counts_parameters_and_locates_tensors(tmp_path):
    content = build_gguf({"general.architecture": "x"}, {"a": ((4, 3), bytes(48)), "b": ((5,), b"\x01" * 20)})
    file = read(tmp_path, content)
    assert file.parameter_count == 4 * 3 + 5
    second = file.tensors[1]
    assert (second.name, second.shape, second.type, second.size_bytes) == ("b", (5,), "F32", 20)
    assert content[second.offset : second.offset + 20] == b"\x01" * 20


def test_quantisation_without_a_file_type_is_that_of_most_bytes(tmp_path):
    content = build_gguf({"general.architecture": "x"}, {"w": ((32, 4), bytes(34 * 4))}, kind=8)
    assert read(tmp_path, content).quantisation == "Q8_0"


@pytest.mark.parametrize("keep", [0, 3, 4, 7, 20, 60, 200, 1000, 5000])
def test_a_truncated_file_is_rejected_in_one_line(tmp_path, keep):
    with pytest.raises(ModelInvalid) as caught:
        read(tmp_path, build_tiny_llama()[:keep])
    assert "\n" not in caught.value.message
    assert str(tmp_path / "model.gguf") in caught.value.message


def test_a_file_without_its_last_bytes_names_the_tensor(tmp_path):
    with pytest.raises(ModelInvalid, match=r"tensor 'w' ends at byte .* truncated"):
        read(tmp_path, one_tensor()[:-1])


def test_every_truncation_of_the_header_is_rejected(tmp_path):
    content = one_tensor(answer=42, name="x", listed=[1, 2], words=["a", "b"])
    for keep in range(len(content)):
        with pytest.raises(ModelInvalid):
            read(tmp_path, content[:keep])


def test_hostile_counts_do_not_cost_memory(tmp_path):
    huge = 2**62
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"k"
    cases = {
        "tensors": b"GGUF" + struct.pack("<IQQ", 3, huge, 0),
        "metadata entries": b"GGUF" + struct.pack("<IQQ", 3, 0, huge),
        "strings in 'k'": head + struct.pack("<IIQ", 9, 8, huge),
        "elements in 'k'": head + struct.pack("<IIQ", 9, 5, huge),
        "the value of 'k'": head + struct.pack("<IQ", 8, huge),
        "the array 'k'": head + struct.pack("<IIQQ", 9, 8, 1, huge),
    }
    for what, content in cases.items():
        with pytest.raises(ModelInvalid, match=what):
            read(tmp_path, content)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda content: b"ABCD" + content[4:], "does not start with GGUF"),
        (lambda content: content[:4] + struct.pack("<I", 1) + content[8:], "version 1 is not supported"),
        (lambda content: content[:4] + struct.pack(">I", 3) + content[8:], "big-endian"),
    ],
)
def test_other_files_are_rejected(tmp_path, change, reason):
    with pytest.raises(ModelInvalid, match=reason):
        read(tmp_path, change(one_tensor()))


def test_unsound_metadata_and_tensors_are_refused(tmp_path):
    def entry(key: bytes, kind: int, value: bytes) -> bytes:
        return struct.pack("<Q", len(key)) + key + struct.pack("<I", kind) + value

    twice = b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + entry(b"k", 4, bytes(4)) * 2
    unknown = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + entry(b"k", 77, bytes(8))
    nested = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + entry(b"k", 9, struct.pack("<IQ", 9, 1) + bytes(20))
    for content, reason in ((twice, "twice"), (unknown, "unknown type 77"), (nested, "type 9")):
        with pytest.raises(ModelInvalid, match=reason):
            read(tmp_path, content)
    with pytest.raises(ModelInvalid, match="power of two"):
        read(tmp_path, one_tensor(**{"general.alignment": 48}))
    with pytest.raises(ModelInvalid, match="multiple of Q8_0 blocks"):
        read(tmp_path, build_gguf({}, {"w": ((31, 1), bytes(34))}, kind=8))
    with pytest.raises(ModelInvalid, match="5 dimensions"):
        read(tmp_path, build_gguf({}, {"w": ((1, 1, 1, 1, 1), bytes(4))}))


def test_a_value_of_another_type_is_rejected_on_access(tmp_path):
    file = read(tmp_path, one_tensor(**{"llama.context_length": "many"}))
    with pytest.raises(ModelInvalid, match=r"llama.context_length must be int, not str"):
        _ = file.context_length


def test_missing_and_empty_files(tmp_path):
    with pytest.raises(ModelInvalid, match="cannot be read"):
        read_gguf(tmp_path / "none.gguf")
    assert not is_gguf(tmp_path / "none.gguf")
    with pytest.raises(ModelInvalid, match="does not start with GGUF"):
        read(tmp_path, b"")


def test_damaged_files_give_one_clear_error_or_are_read(tmp_path):
    """Also where the damage is in the vocabulary or the template."""
    whole = build_tiny_llama()
    header, draw = len(whole) - 4 * 10_000, random.Random(20)
    outcomes = Counter()
    for number in range(400):
        damaged = bytearray(whole)
        for _ in range(draw.choice((1, 1, 2, 8, 64))):
            damaged[draw.randrange(min(header, 9000))] = draw.choice((0, 1, 0x7F, 0x80, 0xFF, draw.randrange(256)))
        path = tmp_path / f"{number}.gguf"
        path.write_bytes(damaged)
        try:
            tokenizer = load_tokenizer(path)
            tokenizer.decode(tokenizer.encode("hello <|im_end|> world"))
            tokenizer.special_text.encode_literally("hello <|im_end|> world", add_special=True)
            load_renderer(path).render([{"role": "user", "content": "hi"}])
            outcomes["read"] += 1
        except EnginebayError as error:
            assert "\n" not in error.message and len(error.message) < 500
            outcomes[type(error).__name__] += 1
        path.unlink()
    assert outcomes["read"] > 20 and outcomes["ModelInvalid"] > 20, outcomes
