"""One choice while it is generated: text, ends, and the luck of its tokens."""

from __future__ import annotations

import pytest

from enginebay.contract import FinishReason
from enginebay.engines.transformers.row import Row, luck
from tests.unit.engines.transformers.helpers import EOS, row


def say(one: Row, text: str) -> str:
    return "".join(one.push(ord(letter)) for letter in text)


def test_text_comes_token_by_token() -> None:
    one = row(1, max_tokens=10)
    assert [one.push(ord(letter)) for letter in "abc"] == ["a", "b", "c"]
    assert one.finished is None


def test_the_end_of_sequence_has_no_text_and_no_reason() -> None:
    one = row(1)
    assert say(one, "hi") + one.push(EOS) == "hi"
    assert (one.finished, one.stop_reason) == (FinishReason.STOP, None)
    assert one.output == [ord("h"), ord("i"), EOS]


def test_ignore_eos_goes_on() -> None:
    one = row(1, ignore_eos=True, max_tokens=3)
    one.push(EOS)
    assert one.finished is None
    say(one, "ab")
    assert one.finished is FinishReason.LENGTH


def test_a_stop_token_is_the_reason() -> None:
    one = row(1, stop_token_ids=(ord("x"),))
    assert say(one, "ax") == "a"
    assert (one.finished, one.stop_reason) == (FinishReason.STOP, ord("x"))


def test_a_stop_string_across_tokens() -> None:
    one = row(1, stop=("END",))
    assert say(one, "one EN") == "one "
    assert say(one, "D") == ""
    assert (one.finished, one.stop_reason) == (FinishReason.STOP, "END")


def test_what_was_held_back_comes_at_the_limit() -> None:
    one = row(1, stop=("END",), max_tokens=2)
    assert say(one, "EN") == "EN"
    assert one.finished is FinishReason.LENGTH


def test_no_end_before_min_tokens() -> None:
    one = row(1, stop=("b",), stop_token_ids=(ord("x"),), min_tokens=3)
    assert say(one, "abx") == "abx"
    assert one.finished is None
    assert say(one, "b") == ""
    assert one.stop_reason == "b"


def test_the_context_is_the_limit_where_none_is_given() -> None:
    assert row(1, prompt=10, context=64).limit == 54
    assert row(1, prompt=10, context=64, max_tokens=5).limit == 5


def test_tokens_run_from_prompt_into_output() -> None:
    one = row(1, prompt=3)
    say(one, "ab")
    assert one.tokens(0, 5) == [1, 2, 3, 97, 98]
    assert one.tokens(2, 4) == [3, 97]
    assert one.tokens(4, 5) == [98]
    assert one.length == 5


def test_luck_depends_on_seed_choice_and_place_alone() -> None:
    assert luck(5, 0, 7) == luck(5, 0, 7)
    assert len({luck(seed, choice, place) for seed in (-1, 5) for choice in (0, 1) for place in (0, 1)}) == 8
    assert all(0 <= luck(seed, 0, 0) < 1 << 62 for seed in range(100))


@pytest.mark.parametrize("seed", [-(2**63), 2**63 - 1])
def test_any_seed_of_the_contract_will_do(seed: int) -> None:
    assert luck(seed, 127, 10_000_000) >= 0


# Noted first, read later


def test_the_end_is_known_before_the_text_is_read() -> None:
    one = row(1, max_tokens=2)
    one.note(ord("a"))
    assert (one.finished, one.text()) == (None, "a")
    one.note(ord("b"))
    assert (one.finished, one.text()) == (FinishReason.LENGTH, "b")


def test_a_stop_string_is_read_at_once_and_sent_once() -> None:
    one = row(1, stop=("bc",))
    for letter, text in (("a", "a"), ("b", ""), ("c", "")):
        one.note(ord(letter))
        ended = one.finished
        assert one.text() == text
    assert (ended, one.stop_reason) == (FinishReason.STOP, "bc")


def test_a_stop_token_ends_a_row_that_also_has_stop_strings() -> None:
    one = row(1, stop=("ab",), stop_token_ids=(ord("x"),))
    one.push(ord("a"))
    one.note(ord("x"))
    assert (one.finished, one.text()) == (FinishReason.STOP, "a")


@pytest.mark.parametrize(
    ("sampling", "shaped"),
    [
        ({}, False),
        ({"temperature": 0.5, "top_p": 0.9, "stop": ("a",), "logprobs": 3}, False),
        ({"logit_bias": {3: 1.0}}, True),
        ({"repetition_penalty": 1.1}, True),
        ({"presence_penalty": 0.1}, True),
        ({"frequency_penalty": 0.1}, True),
        ({"no_repeat_ngram_size": 2}, True),
    ],
)
def test_rows_whose_logits_are_changed_are_known(sampling: dict[str, object], shaped: bool) -> None:
    assert row(1, **sampling).shaped is shaped
