from __future__ import annotations

import pytest

from enginebay.contract import FinishReason, Sampling
from enginebay.engines.llamacpp.choice_output import ChoiceOutput
from enginebay.engines.llamacpp.token_pieces import TokenPieces

_VOCABULARY = [b"a", b" ", b"\xf0\x9f", b"\x98", b"\x80", b" \xf0\x9f\x98", b"\x98\x80", b"\xf0"]
_A, _GRIN_END = 0, 4


def _output(limit: int = 10, **sampling: object) -> ChoiceOutput:
    return ChoiceOutput(0, Sampling(**sampling), limit, TokenPieces(_VOCABULARY).find_unreported)  # type: ignore[arg-type]


def test_tokens_inside_a_character_are_named() -> None:
    pieces = TokenPieces(_VOCABULARY)
    assert pieces.find_unreported("😀", _GRIN_END, 2) == [2, 3]
    assert pieces.find_unreported(" 😀", _GRIN_END, 1) == [5]
    assert pieces.find_unreported("😀", _GRIN_END, 1) == [], "no single token has these bytes"


def test_no_id_is_lost_while_a_character_is_incomplete() -> None:
    output = _output()
    assert output.add_chunk("a", _A, 1) == ("a", [_A], [])
    assert output.add_chunk("😀", _GRIN_END, 4) == ("😀", [2, 3, 4], [])
    assert output.ids == [_A, 2, 3, 4] and output.count == 4


def test_a_limit_inside_a_character_cuts_ids_and_leaves_no_broken_text() -> None:
    output = _output(limit=2)
    assert output.add_chunk("😀", _GRIN_END, 3) == ("", [2, 3], [])


def test_unreported_tokens_at_the_end_leave_the_output_open() -> None:
    output = _output(limit=3)
    output.add_chunk("a", _A, 1)
    output.end_attempt("limit", out_of_context=False)
    assert output.finish_reason is None and output.attempt_limit - output.count == 2
    output.give_up()
    assert output.finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize(
    ("stop_type", "out_of_context", "reason"),
    [("eos", False, FinishReason.STOP), ("limit", True, FinishReason.LENGTH), ("limit", False, None)],
)
def test_how_the_library_ended(stop_type: str, out_of_context: bool, reason: FinishReason | None) -> None:
    output = _output()
    output.add_chunk("a", _A, 1)
    output.end_attempt(stop_type, out_of_context)
    assert output.finish_reason is reason


def test_a_stop_string_ends_and_is_not_sent() -> None:
    output = _output(stop=("aa",))
    assert output.add_chunk("a", _A, 1)[0] == ""
    assert output.add_chunk("a", _A, 2)[0] == ""
    assert (output.finish_reason, output.stop_reason) == (FinishReason.STOP, "aa")


@pytest.mark.parametrize("pieces", [("abcd",), ("a", "b", "c", "d"), ("ab", "cd")])
def test_the_stop_string_that_is_complete_first_wins_however_the_text_is_cut(pieces: tuple[str, ...]) -> None:
    output = _output(stop=("bc", "abcd"))
    sent = [output.add_chunk(piece, _A, made)[0] for made, piece in enumerate(pieces, start=1)]
    assert ("".join(sent), output.stop_reason) == ("a", "bc")


def test_held_text_is_sent_when_the_output_ends() -> None:
    output = _output(stop=("ab",))
    output.add_chunk("a", _A, 1)
    assert output.end_attempt("eos", out_of_context=False) == "a"


def test_a_stop_token_ends_without_its_text() -> None:
    output = _output(stop_token_ids=(_A,))
    assert output.add_chunk("a", _A, 1) == ("", [_A], [])
    assert (output.finish_reason, output.stop_reason) == (FinishReason.STOP, _A)


def test_nothing_stops_before_min_tokens() -> None:
    output = _output(min_tokens=2, stop=("a",), stop_token_ids=(1,))
    assert output.attempt_limit == 2
    assert output.add_chunk("a", _A, 1)[0] == "a"
    assert output.add_chunk(" ", 1, 2)[0] == " "
    assert output.finish_reason is None and output.attempt_limit == 10
    output.begin_attempt()
    assert output.add_chunk("a", _A, 1)[0] == ""
    assert output.finish_reason is FinishReason.STOP


def test_logprobs_are_cut_to_what_was_asked() -> None:
    top = [{"id": 5, "logprob": -0.1}, {"id": 6, "logprob": -2.0}]
    tokens = [{"id": 5, "logprob": -0.1, "top_logprobs": top}]
    assert _output(logprobs=0).add_chunk("a", _A, 1, tokens)[2][0].top == ()
    assert _output(logprobs=2).add_chunk("a", _A, 1, tokens)[2][0].top == ((5, -0.1), (6, -2.0))


def test_an_output_of_another_worker_is_taken_over_with_its_held_text() -> None:
    output = _output(stop=("aab",))
    output.restore([_A, 2, 3, 4, _A], TokenPieces(_VOCABULARY).get_piece)
    assert (output.ids, output.count, output.finish_reason) == ([_A, 2, 3, 4, _A], 5, None)
    output.begin_attempt()
    assert output.add_chunk("x", _A, 1)[0] == "ax", "the letter that could have begun a stop string was not sent"


@pytest.mark.parametrize(
    ("limit", "sampling", "reason"),
    [
        (2, {}, FinishReason.LENGTH),
        (9, {"stop_token_ids": (1,)}, FinishReason.STOP),
        (9, {"stop": ("a ",)}, FinishReason.STOP),
        (9, {"stop_token_ids": (1,), "min_tokens": 2}, None),
        (9, {}, None),
    ],
)
def test_an_output_that_another_worker_completed_only_ends(
    limit: int, sampling: dict[str, object], reason: FinishReason | None
) -> None:
    output = _output(limit, **sampling)
    output.restore([_A, 1], TokenPieces(_VOCABULARY).get_piece)
    assert output.is_restored_complete() is (reason is not None)
    if reason is not None:
        assert output.end_attempt("limit", out_of_context=False) == ""
        assert output.finish_reason is reason
