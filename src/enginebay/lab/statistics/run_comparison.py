"""Compare points cycle by cycle, and list why a difference may not be the engines'. Pure except for reading parity answers."""

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

# Manifest sections that must match in both runs of a pair, and the problem if they do not.
_MUST_MATCH = (
    ("model", "name", "the models differ"),
    ("model", "sha256", "the model's files differ"),
    ("workload", "sha256", "the requests differ"),
    ("environment", "host", "they ran on different hosts"),
)


def compare_runs(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Compare each group with the first one of the same workload; if no two match, compare each with the first."""
    groups = group_runs(runs)
    if len(groups) < 2:
        raise UsageError(
            "nothing to compare: all runs repeat the same point",
            "pass runs of two engines or settings; `bay results aggregate` averages repetitions",
        )
    rivals = [(_find_first_alike(group, groups), group) for group in groups]
    alike = [(a, b) for a, b in rivals if a is not b]
    return [compare_groups(a, b) for a, b in alike or [(groups[0], other) for other in groups[1:]]]


def compare_groups(a: RunGroup, b: RunGroup) -> dict[str, Any]:
    """Compare b with a in every figure that both have. `problems` is empty if the comparison is reliable."""
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
    """Pair runs of the same cycle of the same study; across studies, pair runs of the same cycle."""
    of_a, of_b = ({(run.study_id, run.cycle): run for run in group.counted} for group in (a, b))
    if common := sorted(of_a.keys() & of_b.keys(), key=str):
        return sorted(((of_a[key], of_b[key]) for key in common), key=lambda pair: pair[0].manifest["created"])
    by_a, by_b = ({run.cycle: run for run in group.counted} for group in (a, b))
    return [(by_a[cycle], by_b[cycle]) for cycle in sorted(by_a.keys() & by_b.keys())]


def _find_first_alike(group: RunGroup, candidates: Sequence[RunGroup]) -> RunGroup:
    return next(other for other in candidates if has_same_workload(group, other))


def _number_measures(runs: Any) -> dict[int, Mapping[str, Any]]:
    """Key measures by pair number, since cycles of several studies share numbers."""
    return {number: run.measures for number, run in enumerate(runs)}


def _find_problems(a: RunGroup, b: RunGroup, pairs: RunPairs) -> list[str]:
    """Return why the difference may not be due to the engines."""
    problems = [f"all runs of {group.name} are invalid" for group in (a, b) if group.status == "invalid"]
    if not pairs:
        return [*problems, "no cycle ran on both"]
    if not has_same_workload(a, b):
        problems.append("the workloads differ")
    problems += [
        why for section, key, why in _MUST_MATCH if any(_sections_differ(x, y, section, key) for x, y in pairs)
    ]
    if any(has_other_gpus(x.manifest["environment"], y.manifest["environment"]) for x, y in pairs):
        problems.append("they ran on different GPUs")
    if any(x.study_id != y.study_id for x, y in pairs):
        problems.append("they are from different studies, so something else may have changed in between")
    if len(pairs) == 1:
        problems.append(f"one pair has no interval: at least {MIN_CYCLES} cycles are needed")
    return list(dict.fromkeys(problems))


def _sections_differ(a: Run, b: Run, section: str, key: str) -> bool:
    """Return whether both values are known and differ."""
    x, y = a.manifest[section].get(key), b.manifest[section].get(key)
    return x is not None and y is not None and x != y


def _compare_parity(pairs: RunPairs, a: RunGroup, b: RunGroup) -> dict[str, Any] | None:
    """Compare the answers of the first pair of runs that both kept answers to the same prompts."""
    for run, rival in pairs or [(a.runs[0], b.runs[0])]:
        of_a, of_b = load_parity_answers(run), load_parity_answers(rival)
        if of_a and len(of_a) == len(of_b):
            return compare_answers(of_a, of_b).to_dict()
    return None


def load_parity_answers(run: Run) -> list[ParityAnswer]:
    """Return a run's answers to the parity prompts; empty if there were none."""
    answers = (run.read_parity() or {}).get("answers") or ()
    return [
        ParityAnswer(
            _to_id_tuple(answer["prompt_ids"]),
            _to_id_tuple(answer["token_ids"]),
            _to_logprobs(answer),
            answer.get("text", ""),
        )
        for answer in answers
    ]


def _to_id_tuple(ids: Sequence[int] | None) -> tuple[int, ...] | None:
    return None if ids is None else tuple(ids)


def _to_logprobs(answer: Mapping[str, Any]) -> tuple[float, ...] | None:
    """Return the logprobs; non-finite ones are stored as null."""
    logprobs = answer.get("logprobs")
    return None if logprobs is None else tuple(math.nan if value is None else value for value in logprobs)
