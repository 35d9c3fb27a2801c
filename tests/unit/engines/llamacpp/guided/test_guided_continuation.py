"""A constrained output is continued token by token, each with the tokens that may come next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from enginebay.contract import FinishReason, Guided, Sampling
from enginebay.engines.llamacpp.choice_output import ChoiceOutput
from enginebay.engines.llamacpp.guided.guided_continuation import (
    GuidedContinuation,
    find_forced_token,
    write_token_grammar,
)

PIECES = [b"a", b"b", b"ab", b"abc", b"\xc3", b"\xa9", b""]
END = 6


def get_piece(token: int) -> bytes:
    return PIECES[token]


class ListedMatcher:
    """Allows these tokens, one after the other, then the end."""

    def __init__(self, *steps: list[tuple[int, int]]) -> None:
        self._steps = list(steps)

    def is_complete(self) -> bool:
        return not self._steps

    def is_accepting(self) -> bool:
        return self._steps == [[]]

    def find_allowed_ranges(self) -> list[tuple[int, int]]:
        return self._steps[0]

    def consume_tokens(self, ids: Sequence[int]) -> bool:
        return any(first <= ids[0] <= last for first, last in self._steps.pop(0))


def continue_output(
    matcher: Any, tokens: list[int], limit: int = 10, **sampling: Any
) -> tuple[Any, str, list[int], list[str]]:
    """Return whether all was allowed, with what was sent and the grammars that it took."""
    output = ChoiceOutput(0, Sampling(guided=Guided(regex="x"), **sampling), limit, lambda *_: [])
    output.restore([0], get_piece)
    continuation = GuidedContinuation(output, matcher, get_piece)
    texts: list[str] = []
    ids: list[int] = []
    grammars: list[str] = []

    def generate(grammar: str) -> Mapping[str, Any]:
        grammars.append(grammar)
        token = tokens.pop(0)
        stop = "eos" if token == END else "limit"
        return {"choices": [{"logprobs": None}], "__verbose": {"tokens": [token], "stop_type": stop}}

    def send(text: str, new: Sequence[int], logprobs: Sequence[Any] = ()) -> None:
        texts.append(text)
        ids.extend(new)

    allowed = True
    while allowed and output.finish_reason is None:
        allowed = continuation.step(generate, send)
    return (allowed, output.finish_reason), "".join(texts), ids, grammars


def test_the_grammar_of_one_token() -> None:
    assert write_token_grammar([(1, 1), (3, 7)], may_end=False) == "%llguidance {}\nstart: <[1,3-7]>\n"
    assert write_token_grammar([(1, 1)], may_end=True).endswith("start: <[1]>?\n")


def test_a_forced_text_takes_its_longest_token() -> None:
    assert find_forced_token([(0, 0), (2, 3)], get_piece) == 3
    assert find_forced_token([(0, 1)], get_piece) is None


def test_it_ends_with_the_constraint() -> None:
    found, text, ids, grammars = continue_output(ListedMatcher([(0, 1)], [(4, 4)], [(5, 5)]), [1, 4, 5])
    assert (found, text, ids) == ((True, FinishReason.STOP), "bé", [1, 4, 5])
    assert [grammar.split("<")[1] for grammar in grammars] == ["[0-1]>\n", "[4]>\n", "[5]>\n"]


def test_it_ends_at_the_limit_and_at_a_stop_string() -> None:
    found, text, _, _ = continue_output(ListedMatcher(*[[(0, 1)]] * 5), [1, 0, 1], limit=3)
    assert (found, text) == ((True, FinishReason.LENGTH), "ba")
    found, text, _, _ = continue_output(ListedMatcher(*[[(0, 1)]] * 5), [1, 1, 0], stop=("bb",))
    assert (found, text) == ((True, FinishReason.STOP), "")


def test_a_token_outside_the_constraint_is_noticed() -> None:
    assert continue_output(ListedMatcher([(0, 1)]), [3])[0] == (False, None)
    assert continue_output(ListedMatcher([(0, 1)]), [END])[0][0] is False
