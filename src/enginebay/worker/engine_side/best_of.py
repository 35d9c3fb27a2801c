"""`best_of` for every engine: generates `best_of` choices and keeps the n with the highest mean logprob."""

from __future__ import annotations

from collections import defaultdict

from enginebay.contract import FinishReason, Sampling
from enginebay.worker.engine_side.output_queue import OutputQueue, OutputRow


class BestOf:
    """Holds all choices back until they have finished, then emits the best.

    Meanwhile each token is sent as a row without text and ids, so that the server can count them if the client leaves.
    """

    def __init__(self, keep: int, show_logprobs: bool) -> None:
        self._keep = keep
        self._show_logprobs = show_logprobs
        self._rows: dict[int, list[OutputRow]] = defaultdict(list)
        self._finish: dict[int, tuple[FinishReason, str | int | None]] = {}

    @classmethod
    def from_sampling(cls, sampling: Sampling) -> BestOf | None:
        if sampling.best_of is None or sampling.best_of == sampling.n:
            return None
        return cls(sampling.n, sampling.logprobs is not None)

    def add_row(self, row: OutputRow, queue: OutputQueue) -> None:
        request, _, token_ids, choice, _ = row
        self._rows[choice].append(row)
        for _ in token_ids:
            queue.put_row((request, "", (), 0, ()))

    def finish_choice(self, choice: int, reason: FinishReason, stop_reason: str | int | None) -> None:
        self._finish[choice] = (reason, stop_reason)

    def rank_choices(self) -> list[int]:
        """Return the choices, most probable first; ties go to the earlier one."""
        return sorted(self._finish, key=lambda choice: (-self._compute_mean_logprob(choice), choice))

    def emit(self, request: int, queue: OutputQueue) -> None:
        """Send the best choices, renumbered from 0."""
        for rank, choice in enumerate(self.rank_choices()[: self._keep]):
            for _, text, token_ids, _, logprobs in self._rows[choice]:
                queue.put_row((request, text, token_ids, rank, logprobs if self._show_logprobs else ()))
            reason, stop_reason = self._finish[choice]
            queue.put_finish(request, rank, reason, stop_reason)

    def _compute_mean_logprob(self, choice: int) -> float:
        values = [entry.logprob for row in self._rows[choice] for entry in row[4]]
        return sum(values) / len(values) if values else float("-inf")
