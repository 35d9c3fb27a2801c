"""The state of a sequence: text, finish reasons and random bits."""

from __future__ import annotations

from typing import Any

import pytest

from enginebay.contract import FinishReason
from enginebay.engines.transformers.decoding.sequence_state import SequenceState, derive_random_bits
from tests.unit.engines.transformers.fake_sequences import EOS, append_and_decode, make_sequence


def append_text(sequence: SequenceState, text: str) -> str:
    return "".join(append_and_decode(sequence, ord(letter)) for letter in text)


def test_text_comes_token_by_token() -> None:
    sequence = make_sequence(1, max_tokens=10)
    assert [append_and_decode(sequence, ord(letter)) for letter in "abc"] == ["a", "b", "c"]
    assert sequence.finish_reason is None


def test_the_end_of_sequence_has_no_text_and_no_reason() -> None:
    sequence = make_sequence(1)
    assert append_text(sequence, "hi") + append_and_decode(sequence, EOS) == "hi"
    assert (sequence.finish_reason, sequence.stop_reason) == (FinishReason.STOP, None)
    assert sequence.output == [ord("h"), ord("i"), EOS]


def test_ignore_eos_goes_on() -> None:
    sequence = make_sequence(1, ignore_eos=True, max_tokens=3)
    append_and_decode(sequence, EOS)
    assert sequence.finish_reason is None
    append_text(sequence, "ab")
    assert sequence.finish_reason is FinishReason.LENGTH


def test_a_stop_token_is_the_reason() -> None:
    sequence = make_sequence(1, stop_token_ids=(ord("x"),))
    assert append_text(sequence, "ax") == "a"
    assert (sequence.finish_reason, sequence.stop_reason) == (FinishReason.STOP, ord("x"))


def test_a_stop_string_across_tokens() -> None:
    sequence = make_sequence(1, stop=("END",))
    assert append_text(sequence, "sequence EN") == "sequence "
    assert append_text(sequence, "D") == ""
    assert (sequence.finish_reason, sequence.stop_reason) == (FinishReason.STOP, "END")


def test_held_back_text_is_sent_at_the_limit() -> None:
    sequence = make_sequence(1, stop=("END",), max_tokens=2)
    assert append_text(sequence, "EN") == "EN"
    assert sequence.finish_reason is FinishReason.LENGTH


def test_no_end_before_min_tokens() -> None:
    sequence = make_sequence(1, stop=("b",), stop_token_ids=(ord("x"),), min_tokens=3)
    assert append_text(sequence, "abx") == "abx"
    assert sequence.finish_reason is None
    assert append_text(sequence, "b") == ""
    assert sequence.stop_reason == "b"


def test_the_context_is_the_default_limit() -> None:
    assert make_sequence(1, prompt=10, context=64).max_output_tokens == 54
    assert make_sequence(1, prompt=10, context=64, max_tokens=5).max_output_tokens == 5


def test_tokens_run_from_prompt_into_output() -> None:
    sequence = make_sequence(1, prompt=3)
    append_text(sequence, "ab")
    assert sequence.slice_tokens(0, 5) == [1, 2, 3, 97, 98]
    assert sequence.slice_tokens(2, 4) == [3, 97]
    assert sequence.slice_tokens(4, 5) == [98]
    assert sequence.length == 5


def test_random_bits_depend_on_seed_choice_and_position_alone() -> None:
    assert derive_random_bits(5, 0, 7) == derive_random_bits(5, 0, 7)
    assert (
        len(
            {derive_random_bits(seed, choice, position) for seed in (-1, 5) for choice in (0, 1) for position in (0, 1)}
        )
        == 8
    )
    assert all(0 <= derive_random_bits(seed, 0, 0) < 1 << 62 for seed in range(100))


@pytest.mark.parametrize("seed", [-(2**63), 2**63 - 1])
def test_any_seed_of_the_contract_will_do(seed: int) -> None:
    assert derive_random_bits(seed, 127, 10_000_000) >= 0


# Append first, decode later


def test_the_end_is_known_before_the_text_is_decoded() -> None:
    sequence = make_sequence(1, max_tokens=2)
    sequence.append_token(ord("a"))
    assert (sequence.finish_reason, sequence.take_text()) == (None, "a")
    sequence.append_token(ord("b"))
    assert (sequence.finish_reason, sequence.take_text()) == (FinishReason.LENGTH, "b")


def test_a_stop_string_is_decoded_at_once_and_sent_once() -> None:
    sequence = make_sequence(1, stop=("bc",))
    for letter, text in (("a", "a"), ("b", ""), ("c", "")):
        sequence.append_token(ord(letter))
        ended = sequence.finish_reason
        assert sequence.take_text() == text
    assert (ended, sequence.stop_reason) == (FinishReason.STOP, "bc")


def test_a_stop_token_ends_a_sequence_with_stop_strings() -> None:
    sequence = make_sequence(1, stop=("ab",), stop_token_ids=(ord("x"),))
    append_and_decode(sequence, ord("a"))
    sequence.append_token(ord("x"))
    assert (sequence.finish_reason, sequence.take_text()) == (FinishReason.STOP, "a")


@pytest.mark.parametrize(
    ("sampling", "expected"),
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
def test_sequences_that_need_logit_processing(sampling: dict[str, object], expected: bool) -> None:
    assert make_sequence(1, **sampling).needs_logit_processing is expected


@pytest.mark.parametrize("sampling", [{}, {"stop": ("END",)}, {"stop_token_ids": (ord("x"),), "min_tokens": 3}])
@pytest.mark.parametrize("text", ["sequence EN", "axbx ENDE"])
def test_an_output_of_another_worker_is_taken_over(text: str, sampling: dict[str, Any]) -> None:
    """Whatever the cut, the rest is what follows, and an end that was not sent is found."""
    whole = make_sequence(1, max_tokens=20, **sampling)
    sent = [append_and_decode(whole, ord(letter)) for letter in text if whole.finish_reason is None]
    for cut in range(1, len(sent) + 1):
        rest = make_sequence(2, max_tokens=20, generated=tuple(whole.output[:cut]), **sampling)
        assert rest.output == whole.output[:cut] and rest.cached_tokens == 0
        assert [append_and_decode(rest, token) for token in whole.output[cut:]] == sent[cut:]
        assert (rest.finish_reason, rest.stop_reason) == (whole.finish_reason, whole.stop_reason)
