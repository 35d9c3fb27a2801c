"""A file of requests, run at the engine's full batch and written as answers come, so that it can be resumed.

In: one JSON object a line with `prompt` (text) or `messages` (a chat), optionally `id` (or `custom_id`), `raw`, and any
sampling parameter. Out: one object a line with the same `id`, a digest of the request, and `text` or `error`. Lines are written whole, in the
order in which answers are ready.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from enginebay.contract import Delta, GenerateRequest
from enginebay.contract.messages import Done
from enginebay.errors import Cancelled, EnginebayError, UsageError, WorkerDied
from enginebay.fleet.model_worker import ModelWorker


@dataclass(frozen=True, slots=True)
class Job:
    id: str
    prompt: str | Sequence[Mapping[str, Any]]
    raw: bool
    sampling: Mapping[str, Any]

    @property
    def digest(self) -> str:
        """Changes with anything the line asks for, so that an answer is never taken for another question's."""
        asked = json.dumps([self.prompt, self.raw, dict(self.sampling)], sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(asked.encode()).hexdigest()[:16]


@dataclass(slots=True)
class Tally:
    answered: int = 0
    failed: int = 0
    completion_tokens: int = 0
    elapsed_s: float = 0.0
    started: float = field(default_factory=time.monotonic)


def read_jobs(path: Path) -> list[Job]:
    """All requests of a file. Raises UsageError with the line number for the first one that is wrong."""
    try:
        lines = path.read_bytes().split(b"\n")  # not splitlines(): JSON texts may hold other line ends
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    jobs, seen = [], set()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        job = _job(line, number, path)
        if job.id in seen:
            raise UsageError(
                f"{path}, line {number}: the id {job.id!r} is there twice", "give every request its own id"
            )
        seen.add(job.id)
        jobs.append(job)
    return jobs


def _job(line: bytes, number: int, path: Path) -> Job:
    try:
        data = json.loads(line)
    except ValueError as error:
        raise UsageError(f"{path}, line {number} is not valid JSON: {error}") from None
    if not isinstance(data, dict) or ("prompt" in data) == ("messages" in data):
        raise UsageError(f"{path}, line {number} needs either `prompt` or `messages`")
    name = data.pop("id", data.pop("custom_id", number))
    prompt = data.pop("prompt", None)
    messages = data.pop("messages", None)
    if not isinstance(prompt if messages is None else messages, str if messages is None else list):
        raise UsageError(f"{path}, line {number}: `prompt` is a text, `messages` a list")
    raw = bool(data.pop("raw", False))
    if raw and messages is not None:
        raise UsageError(f"{path}, line {number}: `raw` is for `prompt`; `messages` are always rendered as a chat")
    return Job(str(name), prompt if messages is None else messages, raw, data)


def left_to_do(jobs: Sequence[Job], done: Mapping[str, str], path: Path) -> list[Job]:
    """Jobs without an answer. An answer to another question under the same id is an error, not an answer."""
    for job in jobs:
        if done.get(job.id, job.digest) != job.digest:
            raise UsageError(
                f"{path} has an answer to another request under the id {job.id!r}",
                "the requests have changed since: name another file for their answers",
            )
    return [job for job in jobs if job.id not in done]


def finished(path: Path, retry_failed: bool = False) -> dict[str, str]:
    """Ids that have their answer, with the digest of what was asked. What a crash cut off, and with `retry_failed` what failed, leaves the file."""
    try:
        path.open("ab").close()  # a place that cannot be written to is found before a model is loaded
        lines = path.read_bytes().splitlines(keepends=True)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}", "name another file") from None
    kept, found = [], dict[str, str]()
    for line in lines:
        try:
            answer = json.loads(line)
            name, digest = str(answer["id"]), str(answer["request"])
        except (ValueError, KeyError, TypeError):
            if line.endswith(b"\n"):
                raise UsageError(f"{path} is not a file of answers", "name another file, or remove this one") from None
            continue
        if line.endswith(b"\n") and not (retry_failed and "error" in answer):
            kept.append(line)
            found[name] = digest
    if len(kept) < len(lines):
        fresh = path.with_name(f".{path.name}.{os.getpid()}")
        fresh.write_bytes(b"".join(kept))
        fresh.replace(path)
    return found


async def run_jobs(
    worker: ModelWorker,
    jobs: Sequence[Job],
    request: Callable[[Job], GenerateRequest],
    target: Path,
    concurrency: int | None,
    advance: Callable[[Tally], None],
) -> Tally:
    """Run every job; one that fails becomes an error line, a dead worker ends the run with what was done kept."""
    tally = Tally()
    waiting = iter(jobs)
    with target.open("a", encoding="utf-8") as out:

        async def lane() -> None:
            for job in waiting:
                _write(out, await _one(worker, job, request, tally))
                tally.elapsed_s = time.monotonic() - tally.started
                advance(tally)

        lanes = min(concurrency or max(1, 2 * worker.facts.max_batch), len(jobs))
        running = [asyncio.create_task(lane()) for _ in range(lanes)]
        try:
            await asyncio.gather(*running)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
    return tally


async def _one(
    worker: ModelWorker, job: Job, request: Callable[[Job], GenerateRequest], tally: Tally
) -> dict[str, Any]:
    pieces: dict[int, list[str]] = {}
    reasons: dict[int, str] = {}
    logprobs: dict[int, list[dict[str, Any]]] = {}
    try:
        async for event in worker.generate(request(job)):
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
        return {
            "id": job.id,
            "request": job.digest,
            "error": {"kind": error.kind, "message": error.message, "param": error.param},
        }
    tally.answered += 1
    tally.completion_tokens += usage.completion_tokens
    texts = ["".join(pieces[choice]) for choice in sorted(pieces)]
    return {
        "id": job.id,
        "request": job.digest,
        "text": texts[0],
        **({"texts": texts} if len(texts) > 1 else {}),
        **({"logprobs": [logprobs[choice] for choice in sorted(logprobs)]} if any(logprobs.values()) else {}),
        "finish_reason": reasons[0],
        "usage": {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens},
    }


def _write(out: IO[str], answer: Mapping[str, Any]) -> None:
    out.write(json.dumps(answer, ensure_ascii=False) + "\n")
    out.flush()
