"""Runs a file of requests at the engine's full batch size and writes answers as they finish; a run can resume.

Input: one JSON object per line with `prompt` (text) or `messages` (a chat), optionally `id` (or `custom_id`), `raw` and
any sampling parameter. Output: one object per line with the same `id`, `text` or `error`, and two short hashes:
`request` of the line, `asked` of the full request (line, common parameters, model and requested engine). Lines are
written whole, in order of completion.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple

from enginebay.contract import Delta, GenerateRequest
from enginebay.contract.engine_messages import Done
from enginebay.errors import Cancelled, EnginebayError, UsageError, WorkerDied
from enginebay.fleet.lifecycle.model_worker import ModelWorker
from enginebay.util.atomic_file import write_atomically

_MAX_LISTED = 10  # invalid lines in one error


@dataclass(frozen=True, slots=True)
class BatchDefaults:
    """Parameters common to all lines. Engine settings are not among them: a run may resume with a smaller batch."""

    model: str = ""
    engine: str = ""  # as requested, such as "auto"
    raw: bool = False
    sampling: Mapping[str, Any] = field(default_factory=dict)


class BatchAnswer(NamedTuple):
    """The request that an answer in the file belongs to."""

    line_hash: str
    request_hash: str | None  # None: written before this field existed
    failed: bool = False  # the answer is an error


@dataclass(frozen=True, slots=True)
class BatchRequest:
    id: str
    prompt: str | Sequence[Mapping[str, Any]]
    raw: bool
    sampling: Mapping[str, Any]
    defaults: BatchDefaults = field(default_factory=BatchDefaults)

    @property
    def line_hash(self) -> str:
        """A hash of the line, so that an answer is never matched with a changed request."""
        return _compute_short_hash([self.prompt, self.raw, dict(self.sampling)])

    @property
    def request_hash(self) -> str:
        """A hash of the line and the common parameters."""
        common = self.defaults
        sampling = {**common.sampling, **self.sampling}
        return _compute_short_hash([common.model, common.engine, self.prompt, common.raw or self.raw, sampling])

    def is_answered_by(self, answer: BatchAnswer) -> bool:
        if answer.request_hash is None:
            return answer.line_hash == self.line_hash
        return answer.request_hash == self.request_hash


def _compute_short_hash(content: Any) -> str:
    text = json.dumps(content, sort_keys=True, ensure_ascii=False, default=asdict)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


@dataclass(slots=True)
class BatchTally:
    answered: int = 0
    failed: int = 0
    completion_tokens: int = 0
    elapsed_s: float = 0.0
    started: float = field(default_factory=time.monotonic)
    first_error: str = ""


def read_requests(path: Path, defaults: BatchDefaults | None = None) -> list[BatchRequest]:
    """Read all requests of a file. Raises `UsageError` that lists the invalid lines."""
    try:
        lines = path.read_bytes().split(b"\n")  # not splitlines(): JSON strings may contain other line separators
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    requests, errors = dict[str, BatchRequest](), list[UsageError]()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            request = _parse_request(line, number, defaults or BatchDefaults())
            if request.id in requests:
                raise UsageError(f"line {number}: duplicate id {request.id!r}", "give every request a unique id")
            requests[request.id] = request
        except UsageError as error:
            errors.append(error)
    if errors:
        raise _build_invalid_lines_error(path, errors)
    return list(requests.values())


def _build_invalid_lines_error(path: Path, errors: Sequence[UsageError]) -> UsageError:
    if len(errors) == 1:
        return UsageError(f"{path}, {errors[0].message}", errors[0].hint)
    listed = [error.message for error in errors[:_MAX_LISTED]]
    if len(errors) > _MAX_LISTED:
        listed.append(f"and {len(errors) - _MAX_LISTED} more")
    return UsageError("\n  ".join([f"{path} has {len(errors)} invalid lines", *listed]), "fix them; nothing was run")


def _parse_request(line: bytes, number: int, defaults: BatchDefaults) -> BatchRequest:
    try:
        data = json.loads(line)
    except ValueError as error:
        raise UsageError(f"line {number} is not valid JSON: {error}") from None
    if not isinstance(data, dict) or ("prompt" in data) == ("messages" in data):
        raise UsageError(f"line {number} needs either `prompt` or `messages`")
    name = data.pop("id", data.pop("custom_id", number))
    prompt = data.pop("prompt", None)
    messages = data.pop("messages", None)
    if not isinstance(prompt if messages is None else messages, str if messages is None else list):
        raise UsageError(f"line {number}: `prompt` must be a string, `messages` a list")
    raw = bool(data.pop("raw", False))
    if raw and messages is not None:
        raise UsageError(f"line {number}: `raw` applies to `prompt` only; `messages` always use the chat template")
    return BatchRequest(str(name), prompt if messages is None else messages, raw, data, defaults)


def list_unanswered(
    requests: Sequence[BatchRequest], answers: Mapping[str, BatchAnswer], path: Path
) -> list[BatchRequest]:
    """Return the requests without an answer. Raises `UsageError` if an id has the answer to a different request."""
    changed = [
        request for request in requests if request.id in answers and not request.is_answered_by(answers[request.id])
    ]
    if changed:
        first = changed[0]
        if answers[first.id].line_hash != first.line_hash:
            difference = "answers to different requests"
        else:
            difference = "answers from another model or engine, or with other parameters,"
        raise UsageError(
            f"{path} has {difference} for {len(changed)} of {len(requests)} ids, first {first.id!r}",
            "choose another output file, or delete this one to start over",
        )
    return [request for request in requests if request.id not in answers]


def read_answers(path: Path, retry_failed: bool = False) -> dict[str, BatchAnswer]:
    """Read the answers of an earlier run by id.

    Removes a line that a crash cut off, and with `retry_failed` also failed answers, from the file.
    """
    try:
        path.open("ab").close()  # fail before a model is loaded if the file is not writable
        lines = path.read_bytes().splitlines(keepends=True)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}", "choose another file") from None
    kept, answers = [], dict[str, BatchAnswer]()
    for number, line in enumerate(lines, start=1):
        try:
            data = json.loads(line)
            name, answer = str(data["id"]), BatchAnswer(str(data["request"]), data.get("asked"), "error" in data)
        except (ValueError, KeyError, TypeError):
            if line.endswith(b"\n"):
                raise UsageError(
                    f"line {number} of {path} is not an answer",
                    "choose another file, or delete the line to run its request again",
                ) from None
            continue
        if line.endswith(b"\n") and not (retry_failed and answer.failed):
            kept.append(line)
            answers[name] = answer
    if len(kept) < len(lines):
        write_atomically(path, b"".join(kept))
    return answers


async def run_batch(
    worker: ModelWorker,
    requests: Sequence[BatchRequest],
    build_request: Callable[[BatchRequest], GenerateRequest],
    target: Path,
    concurrency: int | None,
    on_progress: Callable[[BatchTally], None],
) -> BatchTally:
    """Run all requests. A failed one becomes an error line; a dead worker ends the run and keeps finished answers."""
    tally = BatchTally()
    waiting = iter(requests)
    with target.open("a", encoding="utf-8") as out:

        async def run_lane() -> None:
            for request in waiting:
                _write_line(out, await _run_request(worker, request, build_request, tally))
                tally.elapsed_s = time.monotonic() - tally.started
                on_progress(tally)

        lanes = min(concurrency or max(1, 2 * worker.facts.max_batch), len(requests))
        running = [asyncio.create_task(run_lane()) for _ in range(lanes)]
        try:
            await asyncio.gather(*running)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
    return tally


async def _run_request(
    worker: ModelWorker,
    request: BatchRequest,
    build_request: Callable[[BatchRequest], GenerateRequest],
    tally: BatchTally,
) -> dict[str, Any]:
    pieces: dict[int, list[str]] = {}
    reasons: dict[int, str] = {}
    logprobs: dict[int, list[dict[str, Any]]] = {}
    try:
        async for event in worker.generate(build_request(request)):
            if isinstance(event, Delta):
                pieces.setdefault(event.choice, []).append(event.text)
                logprobs.setdefault(event.choice, []).extend(
                    {"token_id": entry.token_id, "logprob": entry.logprob, "top": entry.top} for entry in event.logprobs
                )
                if event.finish_reason is not None:
                    reasons[event.choice] = event.finish_reason.value
            elif isinstance(event, Done):
                usage = event.usage
    except (WorkerDied, Cancelled):
        raise
    except EnginebayError as error:
        tally.failed += 1
        tally.first_error = tally.first_error or f"{request.id}: {error.message}"
        return {
            "id": request.id,
            "request": request.line_hash,
            "asked": request.request_hash,
            "error": {"kind": error.kind, "message": error.message, "param": error.param},
        }
    tally.answered += 1
    tally.completion_tokens += usage.completion_tokens
    texts = ["".join(pieces[choice]) for choice in sorted(pieces)]
    return {
        "id": request.id,
        "request": request.line_hash,
        "asked": request.request_hash,
        "text": texts[0],
        **({"texts": texts} if len(texts) > 1 else {}),
        **({"logprobs": [logprobs[choice] for choice in sorted(logprobs)]} if any(logprobs.values()) else {}),
        "finish_reason": reasons[0],
        "usage": {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens},
    }


def _write_line(out: IO[str], answer: Mapping[str, Any]) -> None:
    out.write(json.dumps(answer, ensure_ascii=False) + "\n")
    out.flush()
