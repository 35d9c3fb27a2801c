"""Guided decoding, without the library."""

from __future__ import annotations

import itertools

import pytest

from enginebay.engines.transformers.decoding.guided_decoding import (
    GrammarConstraint,
    build_choice_grammar,
    find_control_tokens,
    normalize_json_schema,
)


class Matcher:
    """Accepts tokens that count up from 1, and ends with 5."""

    def __init__(self) -> None:
        self.accepted: list[int] = []

    def accept_token(self, token: int) -> bool:
        if token != len(self.accepted) + 1:
            return False
        self.accepted.append(token)
        return True

    def rollback(self, count: int) -> None:
        assert 0 < count <= len(self.accepted)
        del self.accepted[-count:]

    def is_terminated(self) -> bool:
        return len(self.accepted) == 5

    def fill_next_token_bitmask(self, bitmask: list[int], index: int) -> None:
        bitmask[index] = 1 << (len(self.accepted) + 1)


@pytest.mark.parametrize(
    "histories", [[[1], [1, 2], [1, 2, 3]], [[1, 2, 3], [1], [1, 2, 9], [1, 2, 3, 4]], [[], [9], []]]
)
def test_a_constraint_follows_any_history(histories: list[list[int]]) -> None:
    constraint = GrammarConstraint(Matcher(), [0])
    for history in histories:
        legal = list(
            itertools.takewhile(lambda pair: pair[0] == pair[1], zip(history, itertools.count(1), strict=False))
        )
        assert constraint.compute_bitmask(history) == [1 << (len(legal) + 1)]


def test_a_constraint_knows_when_it_is_complete() -> None:
    constraint = GrammarConstraint(Matcher(), [0])
    assert not constraint.is_complete([1, 2, 3, 4])
    assert constraint.is_complete([1, 2, 3, 4, 5])
    assert constraint.compute_bitmask([1, 2, 3, 4, 5]) is None
    assert not constraint.is_complete([1, 2])


def test_choices_become_a_grammar() -> None:
    assert build_choice_grammar(('a "b"', "c\n", "ü")) == r'root ::= "a \"b\"" | "c\n" | "ü"'


def test_an_empty_schema_means_any_object() -> None:
    assert normalize_json_schema("{}") == '{"type": "object"}'
    assert normalize_json_schema('{"type": "string"}') == '{"type": "string"}'


def test_control_characters_are_not_json() -> None:
    assert find_control_tokens([b"a", b"\n", b"x\x15", " é".encode(), b""]) == [1, 2]
