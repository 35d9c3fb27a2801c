"""Decoding token by token and scanning for stop strings."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest

from enginebay.text.tokenization.detokenizer import IncrementalDetokenizer, StopScanner


class Bytes:
    """One token per byte; 256 is a special token."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return bytes(i for i in ids if i < 256).decode("utf-8", errors="replace")


class Pieces:
    """Words with a leading mark that reads as a space, except at the start (as SentencePiece has it)."""

    words = ("_Hello", "_world", "!", "_")

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return "".join(self.words[i] for i in ids).replace("_", " ").removeprefix(" ")


@pytest.mark.parametrize("text", ["plain", "Grüße", "日本語", "👩‍👩‍👧 family 🇩🇪", "a\ufffdb", ""])
def test_bytes_join_to_the_text(text: str) -> None:
    decoder = IncrementalDetokenizer(Bytes())
    pieces = [decoder.feed(byte) for byte in text.encode()]
    assert "".join(pieces) + decoder.finish() == text
    assert "\ufffd" in text or not any("\ufffd" in piece for piece in pieces)


def test_a_character_comes_whole() -> None:
    decoder = IncrementalDetokenizer(Bytes())
    assert [decoder.feed(byte) for byte in "é😀".encode()] == ["", "é", "", "", "", "😀"]


def test_half_a_character_at_the_end_is_left_out() -> None:
    decoder = IncrementalDetokenizer(Bytes())
    assert [decoder.feed(byte) for byte in "ok😀".encode()[:-1]] == ["o", "k", "", "", ""]
    assert decoder.finish() == ""


def test_bytes_that_never_become_a_character_do_not_stall_the_stream() -> None:
    decoder = IncrementalDetokenizer(Bytes())
    text = "".join(decoder.feed(0xFF) for _ in range(40)) + "".join(decoder.feed(b) for b in b"done")
    assert text.endswith("done")
    assert len(text) == 44


def test_the_first_token_keeps_its_space_after_a_prompt() -> None:
    assert IncrementalDetokenizer(Pieces(), prompt=[0]).feed(1) == " world"
    assert IncrementalDetokenizer(Pieces()).feed(1) == "world"


def test_words_join() -> None:
    decoder = IncrementalDetokenizer(Pieces(), prompt=[0, 2])
    assert [decoder.feed(i) for i in (1, 2, 3, 1, 0)] == [" world", "!", " ", " world", " Hello"]


def test_a_prompt_that_ends_inside_a_character() -> None:
    first, *rest = "é".encode()
    decoder = IncrementalDetokenizer(Bytes(), prompt=[ord("a"), first])
    assert "".join(decoder.feed(b) for b in rest) == "é"


def cut(text: str, at: Sequence[int]) -> list[str]:
    edges = [0, *at, len(text)]
    return [text[a:b] for a, b in itertools.pairwise(edges)]


def scan(stops: Sequence[str], pieces: Sequence[str]) -> tuple[str, str | None]:
    scanner = StopScanner(stops)
    shown = "".join(scanner.feed(piece) for piece in pieces)
    return shown + scanner.finish(), scanner.matched


@pytest.mark.parametrize(
    ("stops", "text", "expected"),
    [
        (["END"], "one END two", ("one ", "END")),
        (["END"], "one EN two", ("one EN two", None)),
        (["bc", "abcd"], "xabcd", ("xa", "bc")),
        (["aab"], "aaab", ("a", "aab")),
        (["\n\n"], "a\n\n\nb", ("a", "\n\n")),
        ([], "anything", ("anything", None)),
        (["a", "ab"], "ab", ("", "a")),
    ],
)
def test_the_cut_of_the_text_does_not_matter(stops: list[str], text: str, expected: tuple[str, str | None]) -> None:
    for size in range(len(text)):
        for at in itertools.combinations(range(1, len(text)), min(size, 3)):
            assert scan(stops, cut(text, at)) == expected


def test_random_texts_agree_with_one_character_at_a_time() -> None:
    chance = random.Random(7)
    for _ in range(500):
        stops = ["".join(chance.choices("ab", k=chance.randint(1, 4))) for _ in range(chance.randint(1, 3))]
        text = "".join(chance.choices("ab", k=12))
        at = sorted(chance.sample(range(1, 12), 3))
        assert scan(stops, cut(text, at)) == scan(stops, list(text))


def test_only_what_could_be_a_stop_is_held_back() -> None:
    scanner = StopScanner(["STOP"])
    assert scanner.feed("say S") == "say "
    assert scanner.feed("T") == ""
    assert scanner.feed("A") == "STA"
    assert scanner.feed("STO") == ""
    assert scanner.finish() == "STO"


def test_nothing_comes_after_a_match() -> None:
    scanner = StopScanner(["x"])
    assert scanner.feed("axb") == "a"
    assert scanner.feed("more") == ""
    assert scanner.finish() == ""
