"""What the engine made and the session has not sent yet: events in, one message of columns per flush out."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from enginebay.contract import FinishReason, TokenLogprobs
from enginebay.contract.messages import Done
from enginebay.errors import EnginebayError, EngineFailed
from enginebay.worker import wire
from enginebay.worker.proto import worker_pb2 as pb

Row = tuple[int, str, Sequence[int], int, Sequence[TokenLogprobs]]  # request, text, token ids, choice, logprobs

_MOST_ROWS = 4096  # keeps messages small when a reader was slow


class Outbox:
    """One session's events. Any thread puts, one at a time takes; a deque needs no lock for that."""

    def __init__(self, send: Callable[[], None] = lambda: None) -> None:
        self._rows: deque[Row] = deque()
        self._ends: deque[pb.Finish | pb.Done | pb.Failure] = deque()
        self._send = send
        self.own: dict[int, int] = {}  # this session's numbers of its live requests -> the engine's

    def row(self, row: Row) -> None:
        self._rows.append(row)

    def finish(self, request: int, choice: int, reason: FinishReason, stop_reason: str | int | None) -> None:
        self._ends.append(wire.finish_message(request, choice, reason, stop_reason))

    def done(self, request: int, done: Done) -> None:
        self._ends.append(wire.done_message(request, done))

    def failure(self, request: int, error: EnginebayError) -> None:
        self._ends.append(wire.failure_message(request, error))

    @property
    def waiting(self) -> bool:
        return bool(self._rows or self._ends)

    def wake(self) -> None:
        """What was put may go."""
        if self._rows or self._ends:
            self._send()

    def close(self) -> None:
        """The session is over: nobody is told any more. What is still here goes with us; another thread may be taking it."""
        self._send = lambda: None

    def take(self) -> pb.Flush | None:
        """All that there is, up to a bound; None when there is nothing."""
        # Ends are counted before rows are taken: an end put after its last row can then never overtake it.
        ends = len(self._ends)
        return self._message(ends) if self._rows or ends else None

    def _message(self, ends: int) -> pb.Flush:
        rows = self._rows
        count = len(rows)
        if count > _MOST_ROWS:
            count, ends = _MOST_ROWS, 0
        taken = [rows.popleft() for _ in range(count)]
        try:
            message = columns(taken)
        except Exception as error:  # an engine put what no message can hold: its requests end here, the engine goes on
            failed = EngineFailed(f"the engine's output cannot be sent: {type(error).__name__}: {error}")
            message = pb.Flush(failure=[wire.failure_message(number, failed) for number in {row[0] for row in taken}])
        for _ in range(ends):
            end = self._ends.popleft()
            if isinstance(end, pb.Finish):
                message.finish.append(end)
            elif isinstance(end, pb.Done):
                message.done.append(end)
            else:
                message.failure.append(end)
        return message


def columns(rows: Sequence[Row]) -> pb.Flush:
    """Rows as columns, leaving out the columns that would only hold the usual value."""
    if not rows:
        return pb.Flush()
    requests, texts, ids, choices, logprobs = zip(*rows, strict=True)
    message = pb.Flush(request=requests, text=texts, token_id=[token for one in ids for token in one])
    counts = list(map(len, ids))
    if counts.count(1) != len(counts):
        message.count.extend(counts)
    if any(choices):
        message.choice.extend(choices)
    if any(logprobs):
        message.logprobs.extend(wire.logprobs_message(row, one) for row, one in enumerate(logprobs) if one)
    return message
