from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

import pytest

from enginebay.errors import InvalidRequest, ModelInvalid, Unsupported
from enginebay.text.tokenization.tokenizer import load_special_tokens, load_tokenizer, write_tokenizer
from tests.unit.text.tiny_gguf import build_tiny_llama, build_tiny_vocabulary, write_tiny_llama

TEXTS = [
    "hello world",
    "  1 22  333",
    "naïve ☃ 日本語 👍🏽",
    "a\n\n\nb\t",
    "",
    "<|im_start|>user\nhello<|im_end|>",
    "don't",
]


@pytest.fixture
def gguf(tmp_path) -> Path:
    return write_tiny_llama(tmp_path / "tiny.gguf")


def tokens(tokenizer, text: str) -> list[str]:
    return [tokenizer.id_to_token(number) for number in tokenizer.encode(text, add_special=False)]


def test_merges_and_special_tokens(gguf):
    tokenizer = load_tokenizer(gguf)
    assert tokens(tokenizer, "hello world") == ["hello", "Ġworld"]
    assert tokens(tokenizer, "<|im_start|>hello") == ["<|im_start|>", "hello"]
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.eos_ids) == (1, 2, (2,))
    assert tokenizer.special_tokens == {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    assert tokenizer.special_ids == {0, 1, 2}
    assert tokenizer.vocabulary_size == 3 + 256 + 11


@pytest.mark.parametrize("text", TEXTS)
def test_text_survives_a_round_trip(gguf, text):
    tokenizer = load_tokenizer(gguf)
    assert tokenizer.decode(tokenizer.encode(text, add_special=False), skip_special=False) == text


def test_the_pre_tokenizer_decides_where_words_end(tmp_path):
    """Two spaces before a digit: one token where digits are cut out first, two where the space belongs to the digit."""
    cut = load_tokenizer(write_tiny_llama(tmp_path / "a.gguf", **{"tokenizer.ggml.pre": "smollm"}))
    together = load_tokenizer(write_tiny_llama(tmp_path / "b.gguf", **{"tokenizer.ggml.pre": "gpt-2"}))
    assert tokens(cut, "  1") == ["ĠĠ", "1"]
    assert tokens(together, "  1") == ["Ġ", "Ġ", "1"]


def test_add_special_follows_the_file(tmp_path):
    both = {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.add_eos_token": True}
    tokenizer = load_tokenizer(write_tiny_llama(tmp_path / "a.gguf", **both))
    plain = tokenizer.encode("hello", add_special=False)
    assert tokenizer.encode("hello", add_special=True) == [1, *plain, 2]
    assert tokenizer.decode([1, *plain, 2]) == "hello"


def test_unknown_tokenizers_are_unsupported(tmp_path):
    for change in ({"tokenizer.ggml.pre": "tomorrow"}, {"tokenizer.ggml.model": "t5"}):
        with pytest.raises(Unsupported, match="not supported") as caught:
            load_tokenizer(write_tiny_llama(tmp_path / "a.gguf", **change))
        assert "engine's own tokenizer" in caught.value.hint


def test_broken_vocabularies_are_refused(tmp_path):
    with pytest.raises(ModelInvalid, match="token types"):
        load_tokenizer(write_tiny_llama(tmp_path / "a.gguf", **{"tokenizer.ggml.token_type": [1, 2]}))
    vocabulary = build_tiny_vocabulary()
    del vocabulary["tokenizer.ggml.merges"]
    (tmp_path / "b.gguf").write_bytes(build_tiny_llama(vocabulary))
    with pytest.raises(ModelInvalid, match="merges"):
        load_tokenizer(tmp_path / "b.gguf")


def sentencepiece(tmp_path, **metadata) -> Path:
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "h", "i", "▁h", "▁hi", "hi"]
    scores = [0.0] * 259 + [-9.0, -8.0, -7.0, -3.0, -2.0, -1.0]
    vocabulary = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": [2, 3, 3, *([6] * 256), *([1] * 6)],
        **metadata,
    }
    path = tmp_path / "spm.gguf"
    path.write_bytes(build_tiny_llama(vocabulary))
    return path


def test_sentencepiece_joins_the_best_scored_pair_and_falls_back_to_bytes(tmp_path):
    tokenizer = load_tokenizer(sentencepiece(tmp_path))
    assert tokens(tokenizer, "hi") == ["▁hi"]
    assert tokens(tokenizer, "é") == ["▁", "<0xC3>", "<0xA9>"]
    assert tokens(tokenizer, "hi</s>hi") == ["▁hi", "</s>", "▁hi"]
    assert tokenizer.encode("hi", add_special=True)[0] == tokenizer.bos_id == 1
    assert tokenizer.decode(tokenizer.encode("hi é  h")) == "hi é  h"


def test_sentencepiece_without_the_leading_space(tmp_path):
    tokenizer = load_tokenizer(sentencepiece(tmp_path, **{"tokenizer.ggml.add_space_prefix": False}))
    assert tokens(tokenizer, "hi") == ["hi"]
    assert tokens(tokenizer, " hi") == ["▁hi"]
    assert tokenizer.decode(tokenizer.encode(" hi")) == " hi"


def test_the_converted_folder_gives_the_same_ids(gguf, tmp_path):
    folder = tmp_path / "converted"
    folder.mkdir()
    write_tokenizer(gguf, folder)
    direct, converted = load_tokenizer(gguf), load_tokenizer(folder)
    for text in TEXTS:
        assert converted.encode(text) == direct.encode(text)
    assert converted.eos_ids == direct.eos_ids
    assert load_special_tokens(folder) == load_special_tokens(gguf) == direct.special_tokens


def test_a_stored_model_keeps_its_conversion_until_the_file_changes(tmp_path):
    (tmp_path / "manifest.json").write_text("{}")
    path = write_tiny_llama(tmp_path / "tiny.gguf")
    load_tokenizer(path)
    made = (tmp_path / "tokenizer" / "tokenizer.json").stat().st_mtime_ns
    load_tokenizer(path)
    assert (tmp_path / "tokenizer" / "tokenizer.json").stat().st_mtime_ns == made
    write_tiny_llama(path, **{"tokenizer.ggml.pre": "gpt-2"})
    os.utime(path, (1, 1))
    assert tokens(load_tokenizer(path), "  1") == ["Ġ", "Ġ", "1"]
    assert sorted(child.name for child in tmp_path.iterdir()) == ["manifest.json", "tiny.gguf", "tokenizer"]


def test_nothing_is_written_next_to_unmanaged_files(gguf):
    load_tokenizer(gguf)
    assert list(gguf.parent.iterdir()) == [gguf]


def directory(gguf: Path, folder: Path, **config) -> Path:
    folder.mkdir()
    write_tokenizer(gguf, folder)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **config}))
    return folder


def test_truncation_and_padding_of_a_directory_are_off(gguf, tmp_path):
    folder = directory(gguf, tmp_path / "m")
    content = json.loads((folder / "tokenizer.json").read_text())
    content["truncation"] = {"max_length": 3, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    content["padding"] = {
        "strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": None,
        "pad_id": 0, "pad_type_id": 0, "pad_token": "x",
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(content))
    assert len(load_tokenizer(folder).encode("hello " * 20)) > 20
    assert len(load_tokenizer(folder).encode("hello")) == 1


def test_tokens_that_only_the_config_declares(gguf, tmp_path):
    extra = {"content": "<tool>", "special": True}
    folder = directory(gguf, tmp_path / "m", added_tokens_decoder={"270": extra}, bos_token={"content": "<|end|>"})
    tokenizer = load_tokenizer(folder)
    assert tokens(tokenizer, "<tool>") == ["<tool>"]
    assert tokenizer.bos_id == 0


def test_eos_ids_come_from_the_generation_config(gguf, tmp_path):
    folder = directory(gguf, tmp_path / "m")
    (folder / "generation_config.json").write_text('{"eos_token_id": [2, 0]}')
    assert load_tokenizer(folder).eos_ids == (2, 0)


def test_directories_without_or_with_a_broken_tokenizer(tmp_path):
    with pytest.raises(Unsupported, match=r"no tokenizer.json"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ModelInvalid, match=r"tokenizer.json cannot be read"):
        load_tokenizer(tmp_path)


def test_invalid_unicode_is_rejected(gguf):
    with pytest.raises(InvalidRequest, match="not valid Unicode"):
        load_tokenizer(gguf).encode("a\ud800b")


def test_other_threads_go_on_while_a_long_text_is_tokenized(gguf):
    tokenizer = load_tokenizer(gguf)
    text, beats = "naïve hello world " * 40_000, 0
    work = threading.Thread(target=tokenizer.encode, args=(text,))
    work.start()
    while work.is_alive():
        time.sleep(0.001)
        beats += 1
    assert beats > 20
