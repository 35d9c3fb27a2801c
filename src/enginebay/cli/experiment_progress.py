"""What a person sees while a study runs: what runs now, how far it is, and what is left."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from enginebay.cli.output import note
from enginebay.wording import counted

if TYPE_CHECKING:
    from enginebay.errors import EnginebayError
    from enginebay.lab.client.launch import Live
    from enginebay.lab.runs.reader import Run
    from enginebay.lab.runs.study import Step

_EVERY_S = 0.5
_EVERY_WITHOUT_TERMINAL_S = 30.0


class StudyProgress:
    """One line that changes on a terminal; elsewhere a line now and then."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._head = ""
        self._said = ""  # the phase told last
        self._told_s = 0.0
        self._began_s = self._first_s = time.monotonic()
        self._done = 0
        self._left = 0
        self._before: tuple[float, int] = (0.0, 0)

    def began(self, step: Step, number: int, count: int) -> None:
        self._head = f"[{number}/{count}] {step.label}, cycle {step.cycle}"
        self._began_s = time.monotonic()
        self._left = count - number + 1
        self._before = (0.0, 0)
        if not self._terminal:
            note(self._head)

    def say(self, text: str) -> None:
        self._line(f"{text}{self._outlook()}")
        if not self._terminal and text != self._said:
            self._said = text
            note(f"{self._head}: {text}" if self._head else text)

    def live(self, live: Live, requests: int) -> None:
        now = time.monotonic()
        every_s = _EVERY_S if self._terminal else _EVERY_WITHOUT_TERMINAL_S
        if live.elapsed_s < every_s or now - self._told_s < every_s:
            return
        before_s, before = self._before
        rate = (live.events - before) / max(live.elapsed_s - before_s, 0.001)
        self._before = (live.elapsed_s, live.events)
        failed = f", {live.failed} failed" if live.failed else ""
        text = f"{live.ended}/{requests} answered{failed}, about {rate:,.0f} tokens/s now, {live.elapsed_s:.0f} s"
        self._line(text + self._outlook())
        if not self._terminal:
            note(f"{self._head}: {text}")
        self._told_s = now

    def ended(self, step: Step, result: Run | EnginebayError) -> None:
        from enginebay.errors import EnginebayError

        self.clear()
        self._done += 1
        took = f"{time.monotonic() - self._began_s:.0f} s"
        if isinstance(result, EnginebayError):
            note(f"{self._head}: could not be run: {result.message}")
            if result.hint:
                note(f"     {result.hint}")
            return
        note(f"{self._head}: {result.status}, {_figures(result)} ({took})")
        for reason in result.reasons:
            note(f"     {reason['severity']}: {reason['code']}: {reason['message']}")

    def clear(self) -> None:
        if self._terminal:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def _line(self, text: str) -> None:
        if self._terminal:
            sys.stderr.write(f"\r\x1b[K{self._head}: {text}")
            sys.stderr.flush()

    def _outlook(self) -> str:
        """By the mean of the runs so far; nothing before there is one."""
        if not self._done:
            return ""
        left_s = (time.monotonic() - self._first_s) / self._done * self._left
        return f"; about {left_s / 60:.0f} min left" if left_s >= 90 else f"; about {left_s:.0f} s left"


def _figures(run: Run) -> str:
    from enginebay.lab.runs.figures import digits

    measures = run.measures
    parts = [f"{digits(measures.get('output_tokens_per_s'))} output tokens/s"]
    median_s = measures.get("ttft_s", {}).get("median")
    if median_s is not None:
        parts.append(f"median TTFT {median_s * 1000:.0f} ms")
    if measures.get("errors"):
        parts.append(counted(measures["errors"], "error"))
    return ", ".join(parts)
