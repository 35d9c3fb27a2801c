"""Points against each other, cycle by cycle, with what stands in the way of believing it. Pure but for parity answers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from enginebay.errors import UsageError
from enginebay.lab.measures.parity import ParityAnswer, compare_answers, find_differing_settings
from enginebay.lab.statistics.cycle_statistics import compare_cycles
from enginebay.lab.statistics.run_groups import RunGroup, group_runs, has_same_workload
from enginebay.lab.store.run_environment import has_other_gpus
from enginebay.lab.store.run_reader import Run
from enginebay.lab.validity.limits import MIN_CYCLES

RunPairs = list[tuple[Run, Run]]

# Sections of a manifest that must be the same in both runs of a pair, and what it means when they are not.
_MUST_MATCH = (
    ("model", "name", "the models differ"),
    ("model", "sha256", "the model's files differ"),
    ("workload", "sha256", "the requests differ"),
    ("environment", "host", "they ran on different hosts"),
)


def compare_runs(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Each point against the first one that had the same load; where no two had, each against the first."""
    found = group_runs(runs)
    if len(found) < 2:
        raise UsageError(
            "there is nothing to compare: all of these runs repeat the same point",
            "name runs of two engines or settings; `bay results aggregate` puts repetitions together",
        )
    rivals = [(_find_first_alike(point, found), point) for point in found]
    alike = [(a, b) for a, b in rivals if a is not b]
    return [compare_groups(a, b) for a, b in alike or [(found[0], other) for other in found[1:]]]


def compare_groups(a: RunGroup, b: RunGroup) -> dict[str, Any]:
    """Of b against a, in every figure that both have. `problems` is empty where the numbers can be believed."""
    pairs = pair_runs(a, b)
    problems = _find_problems(a, b, pairs)
    compared = compare_cycles(_number_measures(run for run, _ in pairs), _number_measures(run for _, run in pairs))
    return {
        "a": a.to_dict(),
        "b": b.to_dict(),
        "pairs": len(pairs),
        "valid": not problems,
        "problems": problems,
        "figures": {name: asdict(comparison) for name, comparison in compared.items()},
        "parity": _compare_parity(pairs, a, b),
        "settings": find_differing_settings(
            {"a": a.runs[0].manifest["effective"], "b": b.runs[0].manifest["effective"]}
        ),
    }


def pair_runs(a: RunGroup, b: RunGroup) -> RunPairs:
    """Runs of the same cycle of the same study; of different studies, those of the same cycle."""
    of_a, of_b = ({(run.study_id, run.cycle): run for run in point.counted} for point in (a, b))
    if common := sorted(of_a.keys() & of_b.keys(), key=str):
        return sorted(((of_a[key], of_b[key]) for key in common), key=lambda pair: pair[0].manifest["created"])
    by_a, by_b = ({run.cycle: run for run in point.counted} for point in (a, b))
    return [(by_a[cycle], by_b[cycle]) for cycle in sorted(by_a.keys() & by_b.keys())]


def _find_first_alike(point: RunGroup, among: Sequence[RunGroup]) -> RunGroup:
    return next(other for other in among if has_same_workload(point, other))


def _number_measures(runs: Any) -> dict[int, Mapping[str, Any]]:
    """By number of the pair, since cycles of several studies have the same numbers."""
    return {number: run.measures for number, run in enumerate(runs)}


def _find_problems(a: RunGroup, b: RunGroup, pairs: RunPairs) -> list[str]:
    """Why the difference may not be the engines'."""
    found = [f"all runs of {point.name} are invalid" for point in (a, b) if point.status == "invalid"]
    if not pairs:
        return [*found, "no cycle was run on both"]
    if not has_same_workload(a, b):
        found.append("the loads differ")
    found += [why for section, key, why in _MUST_MATCH if any(_sections_differ(x, y, section, key) for x, y in pairs)]
    if any(has_other_gpus(x.manifest["environment"], y.manifest["environment"]) for x, y in pairs):
        found.append("they ran on different GPUs")
    if any(x.study_id != y.study_id for x, y in pairs):
        found.append("they were not run in one study, so not in turn: what else changed in between is not known")
    if len(pairs) == 1:
        found.append(f"one pair has no interval: it takes at least {MIN_CYCLES} cycles to settle anything")
    return list(dict.fromkeys(found))


def _sections_differ(a: Run, b: Run, section: str, key: str) -> bool:
    """What either of them does not tell is not held against them."""
    x, y = a.manifest[section].get(key), b.manifest[section].get(key)
    return x is not None and y is not None and x != y


def _compare_parity(pairs: RunPairs, a: RunGroup, b: RunGroup) -> dict[str, Any] | None:
    """Of the first two runs that both kept their answers to the same prompts."""
    for one, other in pairs or [(a.runs[0], b.runs[0])]:
        of_a, of_b = load_parity_answers(one), load_parity_answers(other)
        if of_a and len(of_a) == len(of_b):
            return compare_answers(of_a, of_b).to_dict()
    return None


def load_parity_answers(run: Run) -> list[ParityAnswer]:
    """What a run answered to the parity prompts; nothing where none were asked."""
    kept = (run.read_parity() or {}).get("answers") or ()
    return [
        ParityAnswer(
            _to_id_tuple(one["prompt_ids"]), _to_id_tuple(one["token_ids"]), _to_logprobs(one), one.get("text", "")
        )
        for one in kept
    ]


def _to_id_tuple(kept: Sequence[int] | None) -> tuple[int, ...] | None:
    return None if kept is None else tuple(kept)


def _to_logprobs(kept: Mapping[str, Any]) -> tuple[float, ...] | None:
    """One that was not finite is kept as null."""
    found = kept.get("logprobs")
    return None if found is None else tuple(math.nan if one is None else one for one in found)
