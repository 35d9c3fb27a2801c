"""How much prompts share prefixes, which a prefix cache could reuse. Pure."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from enginebay.lab.workload.request_records import Prompt

_PREFIX_CHARACTERS = 4  # allowance for a token that the model puts before every text
_TEXT_FACTOR = 2  # safety factor: characters only approximate shared tokens


def to_compact_ids(ids: Sequence[int]) -> array[int]:
    """Store token ids in a tenth of the memory."""
    return array("I", ids)


def measure_shared_share(prompts: Sequence[Prompt | array[int]]) -> float | None:
    """Return an upper bound, 0 to 1, on the share of input that is also a prefix of another prompt.

    Exact for token ids, an overestimate for text. None for chats, whose start depends on the template.
    """
    kinds: dict[type, list[Any]] = defaultdict(list)
    for prompt in prompts:
        if isinstance(prompt, tuple) and not isinstance(prompt[0], int):
            return None
        kinds[type(prompt)].append(prompt)
    shared = total = 0
    for kind, group in kinds.items():
        first = _PREFIX_CHARACTERS if kind is str else 0
        shared += sum(first + length for length in _longest_shared_prefixes(group))
        total += sum(first + len(prompt) for prompt in group)
    if not total:
        return None
    return min(1.0, shared / total * (_TEXT_FACTOR if str in kinds else 1))


def _longest_shared_prefixes(group: list[Any]) -> list[int]:
    """Return each prompt's longest prefix shared with another: after sorting, only neighbours matter."""
    group = sorted(group)
    between = [0, *(_count_common_prefix(a, b) for a, b in pairwise(group)), 0]
    return [max(pair) for pair in pairwise(between)]


def _count_common_prefix(a: Sequence[Any], b: Sequence[Any]) -> int:
    for position, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return position
    return min(len(a), len(b))
