"""Queue of engine output that a stream has not sent yet: events in, one columnar message per flush out."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from enginebay.contract import FinishReason, TokenLogprobs
from enginebay.contract.engine_messages import Done
from enginebay.errors import EnginebayError, EngineFailed
from enginebay.worker import codec
from enginebay.worker.proto import worker_pb2 as pb

OutputRow = tuple[int, str, Sequence[int], int, Sequence[TokenLogprobs]]  # request, text, token ids, choice, logprobs

_MAX_ROWS = 4096  # keeps messages small when a reader was slow


class OutputQueue:
    """The events of one stream. Any thread puts, one thread at a time takes; a deque needs no lock for that."""

    def __init__(self, send: Callable[[], None] = lambda: None, count_running: Callable[[], int] = lambda: 0) -> None:
        self._rows: deque[OutputRow] = deque()
        self._ends: deque[pb.Finish | pb.Done | pb.Failure] = deque()
        self._send = send
        self._count_running = count_running
        self.engine_numbers: dict[int, int] = {}  # the client's request numbers -> the engine's

    def put_row(self, row: OutputRow) -> None:
        self._rows.append(row)

    def put_finish(self, request: int, choice: int, reason: FinishReason, stop_reason: str | int | None) -> None:
        self._ends.append(codec.encode_finish(request, choice, reason, stop_reason))

    def put_done(self, request: int, done: Done) -> None:
        self._ends.append(codec.encode_done(request, done))

    def put_failure(self, request: int, error: EnginebayError) -> None:
        self._ends.append(codec.encode_failure(request, error))

    @property
    def has_pending(self) -> bool:
        return bool(self._rows or self._ends)

    def flush(self) -> None:
        """Send what is queued."""
        if self._rows or self._ends:
            self._send()

    def close(self) -> None:
        """Stop sending. The queue is not cleared, because another thread may be taking from it."""
        self._send = lambda: None

    def take(self) -> pb.Flush | None:
        """Return one message with all that is queued, up to a limit, or None."""
        # Count ends before taking rows: an end put after its last row can then never overtake it.
        ends = len(self._ends)
        return self._build_message(ends) if self._rows or ends else None

    def _build_message(self, ends: int) -> pb.Flush:
        rows = self._rows
        count = len(rows)
        if count > _MAX_ROWS:
            count, ends = _MAX_ROWS, 0
        taken = [rows.popleft() for _ in range(count)]
        try:
            message = to_columns(taken)
        except Exception as error:  # unencodable output fails its requests, not the engine
            failed = EngineFailed(f"the engine's output cannot be sent: {type(error).__name__}: {error}")
            message = pb.Flush(failure=[codec.encode_failure(number, failed) for number in {row[0] for row in taken}])
        for _ in range(ends):
            end = self._ends.popleft()
            if isinstance(end, pb.Finish):
                message.finish.append(end)
            elif isinstance(end, pb.Done):
                message.done.append(end)
            else:
                message.failure.append(end)
        message.running = self._count_running()
        return message


def to_columns(rows: Sequence[OutputRow]) -> pb.Flush:
    """Convert rows to columns; columns that hold only default values are left out."""
    if not rows:
        return pb.Flush()
    requests, texts, ids, choices, logprobs = zip(*rows, strict=True)
    message = pb.Flush(request=requests, text=texts, token_id=[token for row_ids in ids for token in row_ids])
    counts = list(map(len, ids))
    if counts.count(1) != len(counts):
        message.count.extend(counts)
    if any(choices):
        message.choice.extend(choices)
    if any(logprobs):
        message.logprobs.extend(codec.encode_logprobs(row, entries) for row, entries in enumerate(logprobs) if entries)
    return message
