"""A file of requests, run at the engine's full batch and written as answers come, so that it can be resumed.

In: one JSON object a line with `prompt` (text) or `messages` (a chat), optionally `id` (or `custom_id`), `raw`, and any
sampling parameter. Out: one object a line with the same `id`, `text` or `error`, and two short hashes: `request` of the
line, `asked` of all that was asked (the line with the parameters given for all, the model, the engine asked for). Lines
are written whole, in the order in which answers are ready.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple

from enginebay.contract import Delta, GenerateRequest
from enginebay.contract.engine_messages import Done
from enginebay.errors import Cancelled, EnginebayError, UsageError, WorkerDied
from enginebay.fleet.lifecycle.model_worker import ModelWorker

_MAX_LISTED = 10  # of the wrong lines, at most


@dataclass(frozen=True, slots=True)
class BatchDefaults:
    """What is asked of all lines alike. Settings are none of it: a run may go on with a smaller batch."""

    model: str = ""
    engine: str = ""  # as asked for, such as "auto"
    raw: bool = False
    sampling: Mapping[str, Any] = field(default_factory=dict)


class BatchAnswer(NamedTuple):
    """What an answer in the file is an answer to."""

    line_hash: str
    request_hash: str | None  # None: written before there was this field
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
        """Changes with anything the line asks for, so that an answer is never taken for another question's."""
        return _compute_short_hash([self.prompt, self.raw, dict(self.sampling)])

    @property
    def request_hash(self) -> str:
        """Changes with anything that is asked, by the line or of all lines."""
        common = self.defaults
        sampling = {**common.sampling, **self.sampling}
        return _compute_short_hash([common.model, common.engine, self.prompt, common.raw or self.raw, sampling])

    def is_answered_by(self, found: BatchAnswer) -> bool:
        return (
            found.line_hash == self.line_hash if found.request_hash is None else found.request_hash == self.request_hash
        )


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
    """All requests of a file. Raises UsageError that names the lines that are wrong."""
    try:
        lines = path.read_bytes().split(b"\n")  # not splitlines(): JSON texts may hold other line ends
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    jobs, wrong = dict[str, BatchRequest](), list[UsageError]()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            job = _parse_request(line, number, defaults or BatchDefaults())
            if job.id in jobs:
                raise UsageError(f"line {number}: the id {job.id!r} is there twice", "give every request its own id")
            jobs[job.id] = job
        except UsageError as error:
            wrong.append(error)
    if wrong:
        raise _build_wrong_lines_error(path, wrong)
    return list(jobs.values())


def _build_wrong_lines_error(path: Path, wrong: Sequence[UsageError]) -> UsageError:
    if len(wrong) == 1:
        return UsageError(f"{path}, {wrong[0].message}", wrong[0].hint)
    listed = [error.message for error in wrong[:_MAX_LISTED]]
    if len(wrong) > _MAX_LISTED:
        listed.append(f"and {len(wrong) - _MAX_LISTED} more")
    return UsageError("\n  ".join([f"{path} has {len(wrong)} wrong lines", *listed]), "nothing was run: correct them")


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
        raise UsageError(f"line {number}: `prompt` is a text, `messages` a list")
    raw = bool(data.pop("raw", False))
    if raw and messages is not None:
        raise UsageError(f"line {number}: `raw` is for `prompt`; `messages` are always rendered as a chat")
    return BatchRequest(str(name), prompt if messages is None else messages, raw, data, defaults)


def list_unanswered(
    requests: Sequence[BatchRequest], answers: Mapping[str, BatchAnswer], path: Path
) -> list[BatchRequest]:
    """Jobs without an answer. An answer to something else under the same id is an error, not an answer."""
    others = [job for job in requests if job.id in answers and not job.is_answered_by(answers[job.id])]
    if others:
        first = others[0]
        if answers[first.id].line_hash != first.line_hash:
            what = "answers to another request"
        else:
            what = "answers by another model or engine, or with other parameters,"
        raise UsageError(
            f"{path} has {what} under {len(others)} of {len(requests)} ids, first {first.id!r}",
            "name another file for the answers, or remove this one to begin anew",
        )
    return [job for job in requests if job.id not in answers]


def read_answers(path: Path, retry_failed: bool = False) -> dict[str, BatchAnswer]:
    """Ids that have their answer, with what was asked. What a crash cut off, and with `retry_failed` what failed, leaves the file."""
    try:
        path.open("ab").close()  # a place that cannot be written to is found before a model is loaded
        lines = path.read_bytes().splitlines(keepends=True)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}", "name another file") from None
    kept, found = [], dict[str, BatchAnswer]()
    for number, line in enumerate(lines, start=1):
        try:
            answer = json.loads(line)
            name, to = str(answer["id"]), BatchAnswer(str(answer["request"]), answer.get("asked"), "error" in answer)
        except (ValueError, KeyError, TypeError):
            if line.endswith(b"\n"):
                raise UsageError(
                    f"line {number} of {path} is no answer",
                    "name another file, or remove the line to have it done again",
                ) from None
            continue
        if line.endswith(b"\n") and not (retry_failed and to.failed):
            kept.append(line)
            found[name] = to
    if len(kept) < len(lines):
        fresh = path.with_name(f".{path.name}.{os.getpid()}")
        fresh.write_bytes(b"".join(kept))
        fresh.replace(path)
    return found


async def run_batch(
    worker: ModelWorker,
    requests: Sequence[BatchRequest],
    build_request: Callable[[BatchRequest], GenerateRequest],
    target: Path,
    concurrency: int | None,
    on_progress: Callable[[BatchTally], None],
) -> BatchTally:
    """Run every job; one that fails becomes an error line, a dead worker ends the run with what was done kept."""
    tally = BatchTally()
    waiting = iter(requests)
    with target.open("a", encoding="utf-8") as out:

        async def lane() -> None:
            for job in waiting:
                _write_line(out, await _run_request(worker, job, build_request, tally))
                tally.elapsed_s = time.monotonic() - tally.started
                on_progress(tally)

        lanes = min(concurrency or max(1, 2 * worker.facts.max_batch), len(requests))
        running = [asyncio.create_task(lane()) for _ in range(lanes)]
        try:
            await asyncio.gather(*running)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
    return tally


async def _run_request(
    worker: ModelWorker, job: BatchRequest, build_request: Callable[[BatchRequest], GenerateRequest], tally: BatchTally
) -> dict[str, Any]:
    pieces: dict[int, list[str]] = {}
    reasons: dict[int, str] = {}
    logprobs: dict[int, list[dict[str, Any]]] = {}
    try:
        async for event in worker.generate(build_request(job)):
            if isinstance(event, Delta):
                pieces.setdefault(event.choice, []).append(event.text)
                logprobs.setdefault(event.choice, []).extend(
                    {"token_id": one.token_id, "logprob": one.logprob, "top": one.top} for one in event.logprobs
                )
                if event.finish_reason is not None:
                    reasons[event.choice] = event.finish_reason.value
            elif isinstance(event, Done):
                usage = event.usage
    except (WorkerDied, Cancelled):
        raise
    except EnginebayError as error:
        tally.failed += 1
        tally.first_error = tally.first_error or f"{job.id}: {error.message}"
        return {
            "id": job.id,
            "request": job.line_hash,
            "asked": job.request_hash,
            "error": {"kind": error.kind, "message": error.message, "param": error.param},
        }
    tally.answered += 1
    tally.completion_tokens += usage.completion_tokens
    texts = ["".join(pieces[choice]) for choice in sorted(pieces)]
    return {
        "id": job.id,
        "request": job.line_hash,
        "asked": job.request_hash,
        "text": texts[0],
        **({"texts": texts} if len(texts) > 1 else {}),
        **({"logprobs": [logprobs[choice] for choice in sorted(logprobs)]} if any(logprobs.values()) else {}),
        "finish_reason": reasons[0],
        "usage": {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens},
    }


def _write_line(out: IO[str], answer: Mapping[str, Any]) -> None:
    out.write(json.dumps(answer, ensure_ascii=False) + "\n")
    out.flush()
