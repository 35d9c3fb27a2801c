"""Whether two engines gave the same answers, and whether each ran as it was asked to. Pure.

Speeds compare only where the work was the same: the same token ids in, and greedy answers that agree. Numerics differ
between engines, so long greedy answers part somewhere; how late, and how far apart the logprobs were until then, tells
rounding from a broken engine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from enginebay.lab.measures.distribution import DistributionSummary, summarize

SettingState = Literal["as_asked", "changed", "chosen_by_engine", "not_reported"]
OTHER_IDS_MARK = (
    -1
)  # in the place of prompt ids, before their number: the server works on others than were sent, untold which


@dataclass(frozen=True, slots=True)
class ParityAnswer:
    """One greedy answer; what a server does not tell is None."""

    prompt_ids: tuple[int, ...] | None
    token_ids: tuple[int | str, ...] | None  # or the tokens as text, where ids are not told
    logprobs: tuple[float, ...] | None = None  # of the tokens chosen
    text: str = ""


@dataclass(frozen=True, slots=True)
class Parity:
    """Of b against a. What the servers do not tell is None and its reason in `absent`."""

    answers: int
    same_prompt_ids: bool | None  # in every answer
    identical_answers: float  # share; by token ids where both tell them, else by text
    greedy_agreement: float | None  # share of positions before the first that differs
    first_divergence: (
        DistributionSummary | None
    )  # the position, from 0, in the answers that part; None also where none does
    logprob_distance: float | None  # mean of |Δ| over the common beginnings
    logprob_distance_max: float | None
    output_length_ratio: float | None  # tokens of b per token of a
    absent: Mapping[str, str]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _AnswerPair:
    """Two answers by token ids."""

    a: tuple[int | str, ...]
    b: tuple[int | str, ...]
    common: int
    distances: tuple[float, ...] | None

    @property
    def longest(self) -> int:
        return max(len(self.a), len(self.b))


def compare_answers(a: Sequence[ParityAnswer], b: Sequence[ParityAnswer]) -> Parity:
    """Two engines' answers to the same prompts, in the same order."""
    if len(a) != len(b):
        raise ValueError(f"parity needs as many answers on both sides, not {len(a)} and {len(b)}")
    if not a:
        raise ValueError("parity needs at least one answer")
    answers = list(zip(a, b, strict=True))
    pairs = [pair for pair in (_pair_answers(x, y) for x, y in answers) if pair is not None]
    told = len(pairs) == len(answers)  # a share over some of the answers only would pass for one over all
    absent: dict[str, str] = {}
    same = _have_same_prompts(answers)
    if same is None:
        absent["same_prompt_ids"] = "a server does not tell the token ids it was given"
    if not told:
        reason = "a server does not tell the token ids of its answers"
        absent |= dict.fromkeys(("greedy_agreement", "first_divergence", "output_length_ratio"), reason)
    distances = [distance for pair in pairs for distance in pair.distances or ()] if told else []
    if not distances:
        absent["logprob_distance"] = absent["logprob_distance_max"] = _explain_no_distance(pairs, told)
    partings = [float(pair.common) for pair in pairs if pair.common < pair.longest] if told else []
    return Parity(
        answers=len(answers),
        same_prompt_ids=same,
        identical_answers=sum(_are_identical(x, y) for x, y in answers) / len(answers),
        greedy_agreement=_measure_agreement(pairs) if told else None,
        first_divergence=summarize(partings) if partings else None,
        logprob_distance=math.fsum(distances) / len(distances) if distances else None,
        logprob_distance_max=max(distances, default=None),
        output_length_ratio=_measure_length_ratio(pairs) if told else None,
        absent=absent,
    )


def _pair_answers(a: ParityAnswer, b: ParityAnswer) -> _AnswerPair | None:
    if a.token_ids is None or b.token_ids is None:
        return None
    common = count_common_prefix(a.token_ids, b.token_ids)
    if a.logprobs is None or b.logprobs is None:
        return _AnswerPair(a.token_ids, b.token_ids, common, None)
    both = list(zip(a.logprobs[:common], b.logprobs[:common], strict=False))
    return _AnswerPair(a.token_ids, b.token_ids, common, tuple(abs(x - y) for x, y in both if math.isfinite(x - y)))


def count_common_prefix(a: Sequence[int | str], b: Sequence[int | str]) -> int:
    """How many ids are the same from the beginning."""
    for position, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return position
    return min(len(a), len(b))


def _have_same_prompts(answers: Sequence[tuple[ParityAnswer, ParityAnswer]]) -> bool | None:
    """One prompt that differs is enough to say no; to say yes, all must be told, and not only how many they are."""
    told = [(a.prompt_ids, b.prompt_ids) for a, b in answers if a.prompt_ids is not None and b.prompt_ids is not None]
    if any(a != b for a, b in told):
        return False
    return True if len(told) == len(answers) and not any(a[:1] == (OTHER_IDS_MARK,) for a, _ in told) else None


def _are_identical(a: ParityAnswer, b: ParityAnswer) -> bool:
    if a.token_ids is not None and b.token_ids is not None:
        return a.token_ids == b.token_ids
    return a.text == b.text


def _measure_agreement(pairs: Sequence[_AnswerPair]) -> float:
    """An engine that stops earlier parts from the other there: the longer answer's positions count."""
    positions = sum(pair.longest for pair in pairs)
    return sum(pair.common for pair in pairs) / positions if positions else 1.0


def _measure_length_ratio(pairs: Sequence[_AnswerPair]) -> float | None:
    length = sum(len(pair.a) for pair in pairs)
    return sum(len(pair.b) for pair in pairs) / length if length else None


def _explain_no_distance(pairs: Sequence[_AnswerPair], told: bool) -> str:
    if not told:
        return "a server does not tell the token ids of its answers"
    if all(pair.distances is None for pair in pairs):
        return "a server does not tell logprobs"
    return "no answers begin with the same token"


@dataclass(frozen=True, slots=True)
class SettingRow:
    """One setting of one engine: what was asked for and what it ran."""

    name: str
    asked: Any
    effective: Any
    state: SettingState


def diff_settings(asked: Mapping[str, Any], effective: Mapping[str, Any]) -> tuple[SettingRow, ...]:
    """Of one engine, by dotted name: what was asked first, then what the engine chose by itself."""
    wanted, ran = flatten_settings(asked), flatten_settings(effective)
    rows = [
        SettingRow(name, value, ran.get(name), _classify_setting(name, value, ran))
        for name, value in sorted(wanted.items())
    ]
    rows += [SettingRow(name, None, ran[name], "chosen_by_engine") for name in sorted(ran.keys() - wanted.keys())]
    return tuple(rows)


def find_differing_settings(effective: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The settings in which engines ran differently: by setting, then by engine. One that lacks a setting is left out."""
    flat = {engine: flatten_settings(settings) for engine, settings in effective.items()}
    names = sorted({name for settings in flat.values() for name in settings})
    by_name = {
        name: {engine: settings[name] for engine, settings in flat.items() if name in settings} for name in names
    }
    return {name: found for name, found in by_name.items() if len(found) < len(flat) or _values_differ(found.values())}


def flatten_settings(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """`{"batching": {"batch_size": 4}}` becomes `{"batching.batch_size": 4}`."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten_settings(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def _classify_setting(name: str, wanted: Any, ran: Mapping[str, Any]) -> SettingState:
    if name not in ran:
        return "not_reported"
    if wanted is None or wanted == "auto":
        return "chosen_by_engine"
    return "as_asked" if _to_comparable(wanted) == _to_comparable(ran[name]) else "changed"


def _values_differ(values: Any) -> bool:
    first, *others = [_to_comparable(value) for value in values]
    return any(other != first for other in others)


def _to_comparable(value: Any) -> Any:
    """A list and a tuple with the same values are the same setting."""
    return tuple(map(_to_comparable, value)) if isinstance(value, list | tuple) else value
