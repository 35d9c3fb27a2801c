"""One choice while it is generated: text, ends, and the luck of its tokens."""

from __future__ import annotations

import pytest

from enginebay.contract import FinishReason
from enginebay.engines.transformers.decoding.sequence_state import SequenceState, derive_random_bits
from tests.unit.engines.transformers.fake_rows import EOS, make_row


def say(one: SequenceState, text: str) -> str:
    return "".join(one.append_and_decode(ord(letter)) for letter in text)


def test_text_comes_token_by_token() -> None:
    one = make_row(1, max_tokens=10)
    assert [one.append_and_decode(ord(letter)) for letter in "abc"] == ["a", "b", "c"]
    assert one.finish_reason is None


def test_the_end_of_sequence_has_no_text_and_no_reason() -> None:
    one = make_row(1)
    assert say(one, "hi") + one.append_and_decode(EOS) == "hi"
    assert (one.finish_reason, one.stop_reason) == (FinishReason.STOP, None)
    assert one.output == [ord("h"), ord("i"), EOS]


def test_ignore_eos_goes_on() -> None:
    one = make_row(1, ignore_eos=True, max_tokens=3)
    one.append_and_decode(EOS)
    assert one.finish_reason is None
    say(one, "ab")
    assert one.finish_reason is FinishReason.LENGTH


def test_a_stop_token_is_the_reason() -> None:
    one = make_row(1, stop_token_ids=(ord("x"),))
    assert say(one, "ax") == "a"
    assert (one.finish_reason, one.stop_reason) == (FinishReason.STOP, ord("x"))


def test_a_stop_string_across_tokens() -> None:
    one = make_row(1, stop=("END",))
    assert say(one, "one EN") == "one "
    assert say(one, "D") == ""
    assert (one.finish_reason, one.stop_reason) == (FinishReason.STOP, "END")


def test_what_was_held_back_comes_at_the_limit() -> None:
    one = make_row(1, stop=("END",), max_tokens=2)
    assert say(one, "EN") == "EN"
    assert one.finish_reason is FinishReason.LENGTH


def test_no_end_before_min_tokens() -> None:
    one = make_row(1, stop=("b",), stop_token_ids=(ord("x"),), min_tokens=3)
    assert say(one, "abx") == "abx"
    assert one.finish_reason is None
    assert say(one, "b") == ""
    assert one.stop_reason == "b"


def test_the_context_is_the_limit_where_none_is_given() -> None:
    assert make_row(1, prompt=10, context=64).max_output_tokens == 54
    assert make_row(1, prompt=10, context=64, max_tokens=5).max_output_tokens == 5


def test_tokens_run_from_prompt_into_output() -> None:
    one = make_row(1, prompt=3)
    say(one, "ab")
    assert one.slice_tokens(0, 5) == [1, 2, 3, 97, 98]
    assert one.slice_tokens(2, 4) == [3, 97]
    assert one.slice_tokens(4, 5) == [98]
    assert one.length == 5


def test_luck_depends_on_seed_choice_and_place_alone() -> None:
    assert derive_random_bits(5, 0, 7) == derive_random_bits(5, 0, 7)
    assert (
        len({derive_random_bits(seed, choice, place) for seed in (-1, 5) for choice in (0, 1) for place in (0, 1)}) == 8
    )
    assert all(0 <= derive_random_bits(seed, 0, 0) < 1 << 62 for seed in range(100))


@pytest.mark.parametrize("seed", [-(2**63), 2**63 - 1])
def test_any_seed_of_the_contract_will_do(seed: int) -> None:
    assert derive_random_bits(seed, 127, 10_000_000) >= 0


# Noted first, read later


def test_the_end_is_known_before_the_text_is_read() -> None:
    one = make_row(1, max_tokens=2)
    one.append_token(ord("a"))
    assert (one.finish_reason, one.take_text()) == (None, "a")
    one.append_token(ord("b"))
    assert (one.finish_reason, one.take_text()) == (FinishReason.LENGTH, "b")


def test_a_stop_string_is_read_at_once_and_sent_once() -> None:
    one = make_row(1, stop=("bc",))
    for letter, text in (("a", "a"), ("b", ""), ("c", "")):
        one.append_token(ord(letter))
        ended = one.finish_reason
        assert one.take_text() == text
    assert (ended, one.stop_reason) == (FinishReason.STOP, "bc")


def test_a_stop_token_ends_a_row_that_also_has_stop_strings() -> None:
    one = make_row(1, stop=("ab",), stop_token_ids=(ord("x"),))
    one.append_and_decode(ord("a"))
    one.append_token(ord("x"))
    assert (one.finish_reason, one.take_text()) == (FinishReason.STOP, "a")


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
    assert make_row(1, **sampling).needs_logit_processing is shaped
