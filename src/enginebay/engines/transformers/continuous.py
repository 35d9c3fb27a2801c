"""Continuous batching: every step computes what running rows need, and rows join and leave between steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from enginebay.engines.transformers.drawn import Drawn
from enginebay.engines.transformers.outlet import Outlet
from enginebay.engines.transformers.parallel import Peers
from enginebay.engines.transformers.row import Row
from enginebay.engines.transformers.runner import Runner
from enginebay.engines.transformers.sampling import choose, read
from enginebay.engines.transformers.schedule import Limits, Schedule, Segment


class Continuous:
    """Plans a step, runs it on every rank, draws the tokens and hands them out.

    A device that works by itself is given the next step before the texts of the last one are made: which rows end is
    known from their tokens alone, or else their text is read at once (see `Row`).
    """

    def __init__(self, runner: Runner, limits: Limits, outlet: Outlet, peers: Peers) -> None:
        self._runner = runner
        self._schedule = Schedule(limits)
        self._outlet = outlet
        self._peers = peers
        self._unsaid: list[tuple[Row, Drawn]] = []
        self.steps = 0

    def add(self, rows: Sequence[Row]) -> None:
        """All choices of one request: the first computes the prompt for all."""
        leader, *siblings = rows
        leader.siblings = list(siblings)
        self._schedule.add(leader)

    def cancel(self, number: int) -> None:
        self._schedule.drop(number)

    def start_over(self) -> None:
        """Every request has been cancelled because a step failed: nothing that it may have left half done counts."""
        self._schedule.operations.clear()
        self._runner.start_over()

    def numbers(self) -> set[int]:
        """Requests that are held."""
        return {row.number for row in (*self._schedule.waiting, *self._schedule.running)}

    def computing(self) -> set[int]:
        """Requests that are in every step now. Any thread may ask."""
        return {row.number for row in tuple(self._schedule.running)}

    def loras(self) -> set[str | None]:
        """Adapters of the requests that are held."""
        return {row.lora for row in (*self._schedule.waiting, *self._schedule.running)}

    def used_ratio(self) -> float:
        return self._schedule.used_ratio()

    def advance(self) -> bool:
        """One step; false when there was nothing to do."""
        self._schedule.apart = self._runner.records
        step = self._schedule.plan()
        if step is None:
            return self._hand_out()
        self._peers.send(step)
        chosen: Any = None
        try:
            segments, logits = self._runner.run(step)
            leaders, rows = self._rows(segments)
            if rows:
                logits = _spread(logits, leaders)
                chosen = choose(logits, rows, [row.output for row in rows])
        finally:
            self._hand_out()  # also if this step fails: what the last one made is complete
        self._schedule.done(step)
        self.steps += bool(step.segments)  # without any, it only frees memory
        if rows:
            self._note(leaders, rows, read(chosen, logits, rows))
            if not self._runner.runs_ahead:
                self._hand_out()
        return True

    def _rows(self, segments: Sequence[Segment]) -> tuple[list[Row], list[Row]]:
        """The rows of these segments, and the same with those that start from their prompts."""
        by_key = {row.key: row for row in self._schedule.running}
        leaders = [by_key[segment.key] for segment in segments]
        return leaders, [row for leader in leaders for row in (leader, *leader.siblings)]

    def _note(self, leaders: Sequence[Row], rows: Sequence[Row], drawn: Sequence[Drawn]) -> None:
        self._unsaid = list(zip(rows, drawn, strict=True))
        for row, one in self._unsaid:
            row.note(one.token)
        for leader in leaders:
            if leader.siblings:
                self._schedule.fork(leader)
        self._schedule.finish_ended()

    def _hand_out(self) -> bool:
        """Texts of the last step's tokens; false when there are none."""
        unsaid, self._unsaid = self._unsaid, []
        for row, drawn in unsaid:
            if self._outlet.is_open(row.number):
                self._outlet.say(row, drawn)
        if unsaid:
            self._outlet.flush()
        return bool(unsaid)


def _spread(logits: Any, leaders: Sequence[Row]) -> Any:
    """A row's logits once for itself and once for each of its siblings."""
    if not any(leader.siblings for leader in leaders):
        return logits
    return logits[[i for i, leader in enumerate(leaders) for _ in (leader, *leader.siblings)]]
