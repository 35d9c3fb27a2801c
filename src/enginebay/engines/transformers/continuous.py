"""Continuous batching: every step computes what all running rows need, and rows join and leave between steps."""

from __future__ import annotations

from collections.abc import Sequence

from enginebay.engines.transformers.outlet import Outlet
from enginebay.engines.transformers.parallel import Peers
from enginebay.engines.transformers.row import Row
from enginebay.engines.transformers.runner import Runner
from enginebay.engines.transformers.sampling import draw
from enginebay.engines.transformers.schedule import Limits, Schedule, Segment


class Continuous:
    """Plans a step, runs it on every rank, draws the tokens and hands them out."""

    def __init__(self, runner: Runner, limits: Limits, outlet: Outlet, peers: Peers) -> None:
        self._runner = runner
        self._schedule = Schedule(limits)
        self._outlet = outlet
        self._peers = peers
        self.steps = 0

    def add(self, rows: Sequence[Row]) -> None:
        """All choices of one request: the first computes the prompt for all."""
        leader, *siblings = rows
        leader.siblings = list(siblings)
        self._schedule.add(leader)

    def cancel(self, number: int) -> None:
        self._schedule.drop(number)

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
        step = self._schedule.plan()
        if step is None:
            return False
        self._peers.send(step)
        segments, logits = self._runner.run(step)
        self._schedule.done(step)
        self.steps += bool(step.segments)  # without any, it only frees memory
        if segments:
            self._draw(segments, logits)
            self._outlet.flush()
        return True

    def _draw(self, segments: Sequence[Segment], logits: object) -> None:
        by_key = {row.key: row for row in self._schedule.running}
        leaders = [by_key[segment.key] for segment in segments]
        rows = [row for leader in leaders for row in (leader, *leader.siblings)]
        if len(rows) > len(leaders):
            places = [i for i, leader in enumerate(leaders) for _ in (leader, *leader.siblings)]
            logits = logits[places]  # type: ignore[index]
        for row, drawn in zip(rows, draw(logits, rows, [row.output for row in rows]), strict=True):
            self._outlet.token(row, drawn)
        for leader in leaders:
            self._schedule.fork(leader)
            if leader.finished is not None:
                self._schedule.finish(leader)
        for row in [row for row in self._schedule.running if row.finished is not None]:
            self._schedule.finish(row)
