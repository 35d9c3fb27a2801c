"""Whether two engines gave the same answers, and whether each ran with the requested settings. Pure.

Speeds compare only if the work was the same: the same token ids in, and greedy answers that agree. Numerics differ
between engines, so long greedy answers diverge somewhere. How late they diverge, and how far apart the logprobs are
until then, separates rounding from a broken engine.
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
)  # stands for prompt ids, followed by their count: the server uses other ids than were sent and does not report them


@dataclass(frozen=True, slots=True)
class ParityAnswer:
    """One greedy answer; None for what the server does not report."""

    prompt_ids: tuple[int, ...] | None
    token_ids: tuple[int | str, ...] | None  # or the tokens as text, if the server reports no ids
    logprobs: tuple[float, ...] | None = None  # of the tokens chosen
    text: str = ""


@dataclass(frozen=True, slots=True)
class Parity:
    """Comparison of b against a. What the servers do not report is None, with the reason in `absent`."""

    answers: int
    same_prompt_ids: bool | None  # in every answer
    identical_answers: float  # share; by token ids if both report them, else by text
    greedy_agreement: float | None  # share of positions before the first that differs
    first_divergence: (
        DistributionSummary | None
    )  # position, from 0, in the answers that diverge; None also if none does
    logprob_distance: float | None  # mean of |Δ| over the common prefixes
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
    """Compare two engines' answers to the same prompts, in the same order."""
    if len(a) != len(b):
        raise ValueError(f"parity needs the same number of answers on both sides, not {len(a)} and {len(b)}")
    if not a:
        raise ValueError("parity needs at least one answer")
    answers = list(zip(a, b, strict=True))
    pairs = [pair for pair in (_pair_answers(x, y) for x, y in answers) if pair is not None]
    complete = len(pairs) == len(answers)  # a share over some answers would look like one over all
    absent: dict[str, str] = {}
    same = _have_same_prompts(answers)
    if same is None:
        absent["same_prompt_ids"] = "a server does not report its prompt token ids"
    if not complete:
        reason = "a server does not report the token ids of its answers"
        absent |= dict.fromkeys(("greedy_agreement", "first_divergence", "output_length_ratio"), reason)
    distances = [distance for pair in pairs for distance in pair.distances or ()] if complete else []
    if not distances:
        absent["logprob_distance"] = absent["logprob_distance_max"] = _explain_no_distance(pairs, complete)
    divergences = [float(pair.common) for pair in pairs if pair.common < pair.longest] if complete else []
    return Parity(
        answers=len(answers),
        same_prompt_ids=same,
        identical_answers=sum(_are_identical(x, y) for x, y in answers) / len(answers),
        greedy_agreement=_measure_agreement(pairs) if complete else None,
        first_divergence=summarize(divergences) if divergences else None,
        logprob_distance=math.fsum(distances) / len(distances) if distances else None,
        logprob_distance_max=max(distances, default=None),
        output_length_ratio=_measure_length_ratio(pairs) if complete else None,
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
    """Return how many leading ids are equal."""
    for position, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return position
    return min(len(a), len(b))


def _have_same_prompts(answers: Sequence[tuple[ParityAnswer, ParityAnswer]]) -> bool | None:
    """Return False if any prompt differs, True only if all ids are known and equal, else None."""
    known = [(a.prompt_ids, b.prompt_ids) for a, b in answers if a.prompt_ids is not None and b.prompt_ids is not None]
    if any(a != b for a, b in known):
        return False
    return True if len(known) == len(answers) and not any(a[:1] == (OTHER_IDS_MARK,) for a, _ in known) else None


def _are_identical(a: ParityAnswer, b: ParityAnswer) -> bool:
    if a.token_ids is not None and b.token_ids is not None:
        return a.token_ids == b.token_ids
    return a.text == b.text


def _measure_agreement(pairs: Sequence[_AnswerPair]) -> float:
    """Return the share of equal positions; the longer answer counts, so stopping early is a divergence."""
    positions = sum(pair.longest for pair in pairs)
    return sum(pair.common for pair in pairs) / positions if positions else 1.0


def _measure_length_ratio(pairs: Sequence[_AnswerPair]) -> float | None:
    length = sum(len(pair.a) for pair in pairs)
    return sum(len(pair.b) for pair in pairs) / length if length else None


def _explain_no_distance(pairs: Sequence[_AnswerPair], complete: bool) -> str:
    if not complete:
        return "a server does not report the token ids of its answers"
    if all(pair.distances is None for pair in pairs):
        return "a server does not report logprobs"
    return "no two answers start with the same token"


@dataclass(frozen=True, slots=True)
class SettingRow:
    """One setting of one engine: the requested and the effective value."""

    name: str
    asked: Any
    effective: Any
    state: SettingState


def diff_settings(asked: Mapping[str, Any], effective: Mapping[str, Any]) -> tuple[SettingRow, ...]:
    """Compare one engine's settings by dotted name: requested ones first, then those the engine chose."""
    requested, actual = flatten_settings(asked), flatten_settings(effective)
    rows = [
        SettingRow(name, value, actual.get(name), _classify_setting(name, value, actual))
        for name, value in sorted(requested.items())
    ]
    rows += [
        SettingRow(name, None, actual[name], "chosen_by_engine") for name in sorted(actual.keys() - requested.keys())
    ]
    return tuple(rows)


def find_differing_settings(effective: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the settings that differ between engines: by setting, then by engine. Engines without it are left out."""
    flat = {engine: flatten_settings(settings) for engine, settings in effective.items()}
    names = sorted({name for settings in flat.values() for name in settings})
    by_name = {name: {engine: values[name] for engine, values in flat.items() if name in values} for name in names}
    return {
        name: values for name, values in by_name.items() if len(values) < len(flat) or _values_differ(values.values())
    }


def flatten_settings(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Turn `{"batching": {"batch_size": 4}}` into `{"batching.batch_size": 4}`."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten_settings(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def _classify_setting(name: str, requested: Any, actual: Mapping[str, Any]) -> SettingState:
    if name not in actual:
        return "not_reported"
    if requested is None or requested == "auto":
        return "chosen_by_engine"
    return "as_asked" if _to_comparable(requested) == _to_comparable(actual[name]) else "changed"


def _values_differ(values: Any) -> bool:
    first, *others = [_to_comparable(value) for value in values]
    return any(other != first for other in others)


def _to_comparable(value: Any) -> Any:
    """Turn lists into tuples: both are the same setting."""
    return tuple(map(_to_comparable, value)) if isinstance(value, list | tuple) else value
