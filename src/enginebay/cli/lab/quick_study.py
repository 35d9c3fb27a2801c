"""The size and duration of a study: whose size is left to us, how fast the engines are, how long it takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from enginebay.errors import EnginebayError, UsageError

if TYPE_CHECKING:
    from enginebay.config.resolved_config import Config
    from enginebay.lab.study.engine_speed import EngineSpeed
    from enginebay.lab.study.study_point import StudyPoint

ESTIMATE_UNKNOWN = "expected duration: unknown"


@dataclass(frozen=True, slots=True)
class SizedStudy:
    """A study sized by the measured speed of its engines."""

    points: list[StudyPoint]
    expected_s: list[float | None]  # of a run of each point; None: its engine failed
    summary: str


def is_quick(config: Config, requested: bool, *, from_file: bool) -> bool:
    """Return whether the study is sized here: if requested, or if it comes from no file and nothing sizes it."""
    key = find_size_key(config)
    if not requested:
        return not from_file and key is None
    if key is not None:
        raise UsageError(f"--quick chooses the number of requests, but {key} sets it", f"remove {key} or --quick")
    return True


def find_size_key(config: Config) -> str | None:
    """Return the key that sets how much a study sends. None: there is none. Pure."""
    experiment = config.experiment
    workload = experiment.workload or {}
    keys = {
        "profile": experiment.profile is not None,
        "traffic_simulation": experiment.traffic_simulation.enabled,
        "limits": any(name != "stall_timeout_s" for name in experiment.limits or {}),
        "num_input_prompts": experiment.num_input_prompts is not None,
        "workload.requests": "requests" in workload,
        "workload.kind": workload.get("kind", "synthetic") != "synthetic",
        "sweep": bool(experiment.sweep),
    }
    return next((key for key, is_set in keys.items() if is_set), None)


def sets_output_length(config: Config) -> bool:
    """Return whether the user chose the length of the answers. Pure."""
    return "output_tokens" in (config.experiment.workload or {}) or config.find_origin("sampling.max_tokens").rank > 0


def sets_input_length(config: Config) -> bool:
    """Return whether the user chose the length of the prompts. Pure."""
    return "input_tokens" in (config.experiment.workload or {}) or config.experiment.max_input_tokens is not None


def count_quick_cycles(config: Config) -> int:
    from enginebay.lab.study.study_size import QUICK_CYCLES

    return config.experiment.num_cycles if config.find_origin("num_cycles").rank > 0 else QUICK_CYCLES


def size_points(points: Sequence[StudyPoint], config: Config, on_status: Callable[[str], None]) -> SizedStudy:
    """Measure the engines' speed, and size the study by those that run. Raises `EnginebayError` if none does."""
    from enginebay.lab.study.study_point import plan_run
    from enginebay.lab.study.study_size import (
        OUTPUT_TOKENS,
        apply_size,
        estimate_run_s,
        shorten_preparation,
        size_study,
    )

    points = [shorten_preparation(point) for point in points]
    speeds = measure_speeds(points, on_status)
    known = {
        point.label: speed for point, speed in zip(points, speeds, strict=True) if not isinstance(speed, EnginebayError)
    }
    failures = [speed for speed in speeds if isinstance(speed, EnginebayError)]
    if not known:
        raise failures[0]
    fixed = get_output_tokens(points[0])
    parity = plan_run(points[0]).parity
    size = size_study(known.values(), parity, (fixed,) if sets_output_length(config) else OUTPUT_TOKENS)
    summary = (
        f"{format_speeds(known, size.output_tokens)}: each run sends {size.requests} requests for "
        f"{size.output_tokens} tokens; to choose the number yourself, set limits.requests or a profile"
    )
    sized = [apply_size(point, size) for point in points]
    expected_s = [
        None if isinstance(speed, EnginebayError) else estimate_run_s(speed, size, parity) for speed in speeds
    ]
    return SizedStudy(sized, expected_s, summary)


def measure_speeds(
    points: Sequence[StudyPoint], on_status: Callable[[str], None]
) -> list[EngineSpeed | EnginebayError]:
    """Measure the speed of each engine in a few seconds, or return why it cannot run."""
    from enginebay.cli.lab.study_planning import read_tokenizer
    from enginebay.lab.study.engine_speed import measure_speed

    speeds: list[EngineSpeed | EnginebayError] = []
    for point in points:
        try:
            speeds.append(measure_speed(point, read_tokenizer, on_status))
        except EnginebayError as error:
            speeds.append(error)
    return speeds


def get_output_tokens(point: StudyPoint) -> int:
    """Return the length of the answers, or a guess if it varies."""
    from enginebay.cli.lab.study_points import DEFAULT_OUTPUT_TOKENS

    length = point.workload.get("output_tokens")
    return length if isinstance(length, int) else DEFAULT_OUTPUT_TOKENS


def list_lengths(point: StudyPoint, config: Config) -> list[tuple[int, int]]:
    """Return the lengths of prompts and answers that a search may try, the longest first; none if the user chose them."""
    from enginebay.lab.search.search_duration import LENGTH_SHARES

    prompt, answer = point.workload.get("input_tokens"), point.workload.get("output_tokens")
    if not isinstance(prompt, int) or not isinstance(answer, int) or sets_output_length(config):
        return []
    if sets_input_length(config):
        return [(prompt, max(1, answer // by)) for _, by in LENGTH_SHARES]
    return [(max(1, prompt // by), max(1, answer // share)) for by, share in LENGTH_SHARES]


def format_speeds(speeds: Mapping[str, EngineSpeed], output_tokens: int) -> str:
    return "; ".join(
        f"{label} starts in {speed.start_s:.0f} s and answers about {speed.requests_per_s(output_tokens):.2g} requests/s"
        for label, speed in speeds.items()
    )


def estimate_points(points: Sequence[StudyPoint], folder: Path) -> list[float | None]:
    """Return how long a run of each point takes, by earlier runs in the folder. None: unknown."""
    from enginebay.lab.store.run_reader import list_runs
    from enginebay.lab.study.study_size import estimate_from_runs

    runs, _ = list_runs(folder, verify=False)
    return [estimate_from_runs(point, runs) for point in points]


def describe_duration(points: Sequence[StudyPoint], expected_s: Sequence[float | None], cycles: int) -> str:
    """Describe how long a study takes, or what is not known of it."""
    from enginebay.lab.study.study_point import plan_run
    from enginebay.lab.study.study_size import estimate_sending_s

    known = [seconds for seconds in expected_s if seconds is not None]
    if len(known) == len(expected_s):
        return f"expected duration: {format_about(sum(known) * cycles)}, by earlier runs on this host"
    unknown = ", ".join(
        dict.fromkeys(
            f"{point.engine or point.url} with {point.model}"
            for point, seconds in zip(points, expected_s, strict=True)
            if seconds is None
        )
    )
    sending = [estimate_sending_s(plan_run(point)) or 0.0 for point in points]
    at_least = f", at least {format_about(sum(sending) * cycles).removeprefix('about ')}" if sum(sending) else ""
    return f"{ESTIMATE_UNKNOWN}{at_least}: {unknown} has not run this workload on this host yet"


def describe_quick_duration(points: int, cycles: int) -> str:
    """Describe how long a study takes that is sized when it starts."""
    from enginebay.lab.study.study_size import RUN_BUDGET_S

    whole = format_about(RUN_BUDGET_S * points * cycles)
    return (
        f"expected duration: {whole}, longer if an engine takes long to start; "
        "the number of requests follows from the speed of the engines, which is measured at the start"
    )


def format_about(seconds: float) -> str:
    """Format an estimate, rounded up: `about 40 s`, `about 2.5 min`, `about 2 h 10 min`."""
    if seconds < 90:
        return f"about {math.ceil(seconds)} s"
    if seconds < 600:
        return f"about {math.ceil(seconds / 30) / 2:g} min"
    minutes = math.ceil(seconds / 60)
    return f"about {minutes} min" if minutes < 90 else f"about {minutes // 60} h {minutes % 60} min"


def without_unknown(expected_s: Sequence[float | None]) -> dict[int, float]:
    """Return the known durations by the index of their point."""
    return {index: seconds for index, seconds in enumerate(expected_s) if seconds is not None}
