"""How much prompts share: what a prefix cache may know of one from another. Pure."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from enginebay.lab.workload.request_records import Prompt

_PREFIX_CHARACTERS = 4  # characters; the token that a model may put before every text
_TEXT_FACTOR = 2  # times; characters tell only about how many tokens are shared


def to_compact_ids(ids: Sequence[int]) -> array[int]:
    """Token ids in a tenth of the memory."""
    return array("I", ids)


def measure_shared_share(prompts: Sequence[Prompt | array[int]]) -> float | None:
    """The share of all input, 0 to 1, that a prompt has in common with the beginning of another one, at most.

    By token ids it is exact, and by characters rather too much. None: chats, which begin as their template says.
    """
    kinds: dict[type, list[Any]] = defaultdict(list)
    for prompt in prompts:
        if isinstance(prompt, tuple) and not isinstance(prompt[0], int):
            return None
        kinds[type(prompt)].append(prompt)
    alike = whole = 0
    for kind, group in kinds.items():
        first = _PREFIX_CHARACTERS if kind is str else 0
        alike += sum(first + one for one in _longest_shared_prefixes(group))
        whole += sum(first + len(one) for one in group)
    if not whole:
        return None
    return min(1.0, alike / whole * (_TEXT_FACTOR if str in kinds else 1))


def _longest_shared_prefixes(group: list[Any]) -> list[int]:
    """For each prompt, how long its beginning is that another one has too: in order, the nearest is a neighbour."""
    group = sorted(group)
    between = [0, *(_count_common_prefix(one, other) for one, other in pairwise(group)), 0]
    return [max(pair) for pair in pairwise(between)]


def _count_common_prefix(one: Sequence[Any], other: Sequence[Any]) -> int:
    for place, (mine, theirs) in enumerate(zip(one, other, strict=False)):
        if mine != theirs:
            return place
    return min(len(one), len(other))
