"""Progress of a study on stderr: current run, live rates and time left."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from statistics import fmean
from types import MappingProxyType
from typing import TYPE_CHECKING

from enginebay.cli.lab.quick_study import format_about
from enginebay.cli.output.console import note, redraw_line
from enginebay.util.text_format import pluralize

if TYPE_CHECKING:
    from enginebay.errors import EnginebayError
    from enginebay.lab.loadgen.sender_pool import LoadgenProgress
    from enginebay.lab.search.candidates import Candidate
    from enginebay.lab.store.run_reader import Run
    from enginebay.lab.store.study_plan import StudyStep

_REFRESH_S = 0.5
_PLAIN_REFRESH_S = 30.0


class StudyProgress:
    """Progress of a study: one changing line on a terminal, plain lines elsewhere."""

    def __init__(self, steps: Sequence[StudyStep] = (), expected_s: Mapping[int, float] = MappingProxyType({})) -> None:
        """`steps`: the whole study. `expected_s`: how long a run of each point takes, where it is known."""
        self._steps = steps
        self._expected_s = expected_s
        self._durations_s: dict[int, list[float]] = {}  # of finished runs, by point
        self._is_terminal = sys.stderr.isatty()
        self._head = ""
        self._last_phase = ""
        self._printed_s = 0.0
        self._run_started_s = time.monotonic()
        self._remaining: Sequence[StudyStep] = ()  # with the current one
        self._last_sample: tuple[float, int] = (0.0, 0)

    def begin_run(self, step: StudyStep, number: int, count: int) -> None:
        self._head = f"[{number}/{count}] {step.label}, cycle {step.cycle}"
        self._run_started_s = time.monotonic()
        self._remaining = self._steps[number - 1 :]
        self._last_sample = (0.0, 0)
        if not self._is_terminal:
            note(f"{self._head}{self._format_time_left()}")

    def show_phase(self, text: str) -> None:
        self._draw_line(f"{text}{self._format_time_left()}")
        if not self._is_terminal and text != self._last_phase:
            self._last_phase = text
            note(f"{self._head}: {text}" if self._head else text)

    def show_live(self, live: LoadgenProgress, requests: int) -> None:
        now = time.monotonic()
        every_s = _REFRESH_S if self._is_terminal else _PLAIN_REFRESH_S
        if live.elapsed_s < every_s or now - self._printed_s < every_s:
            return
        before_s, before = self._last_sample
        rate = (live.events - before) / max(live.elapsed_s - before_s, 0.001)
        self._last_sample = (live.elapsed_s, live.events)
        failed = f", {live.failed} failed" if live.failed else ""
        text = f"{live.ended}/{requests} answered{failed}, about {rate:,.0f} tokens/s now, {live.elapsed_s:.0f} s"
        self._draw_line(text + self._format_time_left())
        if not self._is_terminal:
            note(f"{self._head}: {text}{self._format_time_left()}")
        self._printed_s = now

    def end_run(self, step: StudyStep, result: Run | EnginebayError) -> None:
        from enginebay.errors import EnginebayError

        self.clear()
        took_s = time.monotonic() - self._run_started_s
        self._durations_s.setdefault(step.point, []).append(took_s)
        took = f"{took_s:.0f} s"
        if isinstance(result, EnginebayError):
            note(f"{self._head}: failed: {result.message}")
            if result.hint:
                note(f"     {result.hint}")
            return
        note(f"{self._head}: {result.status}, {_format_figures(result)} ({took})")
        for reason in result.reasons:
            note(f"     {reason['severity']}: {reason['code']}: {reason['message']}")

    def clear(self) -> None:
        if self._is_terminal:
            redraw_line()

    def _draw_line(self, text: str) -> None:
        if self._is_terminal:
            redraw_line(f"{self._head}: {text}")

    def _format_time_left(self) -> str:
        left_s = self._estimate_left_s()
        return "" if left_s is None else f"; {format_about(left_s)} left"

    def _estimate_left_s(self) -> float | None:
        """Estimate by the runs so far, else by what is expected. None: nothing is known of a remaining run."""
        known = [self._estimate_run_s(step.point) for step in self._remaining]
        times = [seconds for seconds in known if seconds is not None]
        if not times or len(times) < len(known):
            return None
        return max(0.0, times[0] - (time.monotonic() - self._run_started_s)) + sum(times[1:])

    def _estimate_run_s(self, point: int) -> float | None:
        durations_s = self._durations_s.get(point)
        if not durations_s and point in self._expected_s:
            return self._expected_s[point]
        seen = durations_s or [seconds for durations in self._durations_s.values() for seconds in durations]
        return fmean(seen) if seen else None


def _format_figures(run: Run) -> str:
    from enginebay.util.number_format import format_digits

    measures = run.measures
    parts = [f"{format_digits(measures.get('output_tokens_per_s'))} output tokens/s"]
    median_s = measures.get("ttft_s", {}).get("median")
    if median_s is not None:
        parts.append(f"median TTFT {median_s * 1000:.0f} ms")
    if measures.get("errors"):
        parts.append(pluralize(measures["errors"], "error"))
    return ", ".join(parts)


class SearchProgress(StudyProgress):
    """Progress of a search, whose number of runs is not known in advance, but when it ends."""

    def __init__(self) -> None:
        super().__init__()
        self.ends_at_s: float | None = None  # by the monotonic clock, as announced

    def begin_engine(self, label: str, number: int, count: int) -> None:
        """Start the next engine."""
        self._engine_label = f"[{number}/{count}] {label}"
        self._start_line(self._engine_label)

    def begin_search_run(self, description: str) -> None:
        """Start the next run on this engine."""
        self._start_line(f"{self._engine_label} {description}")

    def end_search_run(self, run: Run, description: str) -> None:
        self.clear()
        if run.manifest["profile"]["kind"] == "closed":  # only estimates where to start
            note(f"{self._head}: {description}")
            return
        codes = ", ".join(reason["code"] for reason in run.reasons)
        note(f"{self._head}: {description} ({run.status}{f': {codes}' if codes else ''})")

    def end_engine(self, candidate: Candidate) -> None:
        self.clear()
        if candidate.rate is None:
            note(f"{self._engine_label}: {candidate.why_none}")
            return
        limit = f", {candidate.limit}" if candidate.limit else ""
        above = limit if candidate.above is None else f", missed at {candidate.above:g}"
        note(f"{self._engine_label}: {candidate.rate:g} requests/s{above}")

    def _start_line(self, head: str) -> None:
        self._head = head
        self._last_sample = (0.0, 0)
        if not self._is_terminal and self.ends_at_s is not None:
            note(f"{head}{self._format_time_left()}")

    def _estimate_left_s(self) -> float | None:
        return None if self.ends_at_s is None else max(0.0, self.ends_at_s - time.monotonic())
