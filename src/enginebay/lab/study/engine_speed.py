"""Measure how fast an engine answers on this host, in a few seconds: to size a study, and to announce how long it takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from enginebay.errors import EnginebayError
from enginebay.lab.loadgen.sender_pool import run_loadgen
from enginebay.lab.loadgen.sender_task import TargetServer, split_into_tasks
from enginebay.lab.study.bay_server import run_engine_server
from enginebay.lab.study.run_point import TokenizerLoader, build_unmeasured
from enginebay.lab.study.server_facts import fetch_server_facts
from enginebay.lab.study.study_point import StudyPoint, plan_run
from enginebay.lab.workload.request_records import Record, Request

BATCH, SLOW_BATCH = 8, 4  # requests at once
_SLOW_S = 1.0  # a slow engine needs more for one request
SHORT_TOKENS, LONG_TOKENS = 4, 20  # of the answers; two lengths tell apart the time of a prompt and of a token
_SEED_OFFSET = 104_729  # other prompts than those of the runs and their warm-up
_FASTEST_S = 1e-6


@dataclass(frozen=True, slots=True)
class EngineSpeed:
    """Seconds that requests of one workload take, by the length of the answer."""

    start_s: float  # of the server
    first_s: float  # to the first token of a single request
    token_s: float  # between its tokens
    batch_first_s: float  # a batch of requests at once, without its tokens
    batch_token_s: float  # for one more token of each of them
    batch: int = BATCH

    def single_s(self, output_tokens: int) -> float:
        """Return the time of one request at a time."""
        return self.first_s + self.token_s * max(0, output_tokens - 1)

    def batch_s(self, output_tokens: int) -> float:
        """Return the time of a batch."""
        return max(self.batch_first_s + self.batch_token_s * output_tokens, _FASTEST_S)

    def requests_per_s(self, output_tokens: int) -> float:
        """Return the throughput of batches. With more requests at once it is usually higher."""
        return self.batch / self.batch_s(output_tokens)


def measure_speed(
    point: StudyPoint, load_tokenizer: TokenizerLoader, on_status: Callable[[str], None] = lambda text: None
) -> EngineSpeed:
    """Start the point's engine, send it a few short requests, and stop it. Raise `EnginebayError`."""
    assert point.serve is not None
    on_status(f"starting {point.engine} to measure its speed")
    with run_engine_server(point.engine, point.model, point.serve) as server:
        target = TargetServer(server.url, point.model, server.headers, dict(point.body), point.timeout_s)
        facts = fetch_server_facts(target)
        target = replace(target, is_enginebay=facts.is_enginebay)
        prompts = build_unmeasured(
            load_tokenizer, point, plan_run(point), point.seed + _SEED_OFFSET, facts, 2 + 2 * BATCH
        )
        on_status(f"measuring the speed of {point.engine}")
        _send(target, prompts[:1], SHORT_TOKENS)  # the first request of a server is slower
        (single,) = _send(target, prompts[1:2] or prompts[:1], LONG_TOKENS)
        batch = BATCH if (single.end_s or 0.0) - single.sent_s < _SLOW_S else SLOW_BATCH
        short = _send(target, prompts[2 : 2 + batch] or prompts, SHORT_TOKENS)
        long = _send(target, prompts[2 + batch : 2 + 2 * batch] or prompts, LONG_TOKENS)
        return summarize_speed(server.start_s, single, short, long, batch)


def _send(target: TargetServer, requests: Sequence[Request], output_tokens: int) -> list[Record]:
    """Send the requests at once, each with an answer of exactly this length."""
    sized = [replace(request, output_tokens=output_tokens) for request in requests]
    records = run_loadgen(split_into_tasks(target, sized, None, len(sized), 1), sized).records
    failed = next((record for record in records if record.error is not None), None)
    if failed is not None:
        raise EnginebayError(f"a simple request failed: {failed.error}", failed.detail)
    return records


def summarize_speed(
    start_s: float, single: Record, short: Sequence[Record], long: Sequence[Record], batch: int = BATCH
) -> EngineSpeed:
    """Fit the times to the lengths. `short` and `long`: batches with answers of `SHORT_TOKENS` and `LONG_TOKENS`. Pure."""
    first_s = (single.first_s or single.end_s or 0.0) - single.sent_s
    token_s = ((single.last_s or 0.0) - (single.first_s or 0.0)) / (LONG_TOKENS - 1)
    short_s, long_s = (_last_end_s(records) * batch / len(records) for records in (short, long))
    batch_token_s = max((long_s - short_s) / (LONG_TOKENS - SHORT_TOKENS), 0.0)
    return EngineSpeed(start_s, first_s, token_s, max(0.0, long_s - batch_token_s * LONG_TOKENS), batch_token_s, batch)


def _last_end_s(records: Sequence[Record]) -> float:
    return max(record.end_s or 0.0 for record in records) - min(record.sent_s for record in records)
