"""Build the requests of a workload, identical for the same seed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from enginebay.errors import ConfigError
from enginebay.lab.workload.field_checks import check_whole_number
from enginebay.lab.workload.jsonl_prompts import PromptLine, cut_prompt, encode_prompt, read_prompt_lines
from enginebay.lab.workload.length_distributions import draw_lengths
from enginebay.lab.workload.prefix_sharing import measure_shared_share, to_compact_ids
from enginebay.lab.workload.prompt_writer import PromptWriter
from enginebay.lab.workload.request_records import Request
from enginebay.lab.workload.seeded_random import make_generator
from enginebay.lab.workload.trace_files import TraceRow, read_trace, select_rows
from enginebay.lab.workload.workload_spec import (
    ChatRender,
    JsonlSpec,
    SyntheticSpec,
    TextTokenizer,
    TraceSpec,
    WorkloadSpec,
    missing_tokenizer_error,
)


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests, and notes on what was skipped or changed to build them."""

    requests: tuple[Request, ...]
    notes: tuple[str, ...] = ()
    shared: float | None = None  # share of a file's input that is also a prefix of another prompt; None: unknown


def build_workload(
    spec: WorkloadSpec,
    tokenizer: TextTokenizer | None,
    count: int | None,
    seed: int,
    *,
    context_length: int | None = None,
    render: ChatRender | None = None,
    held_back: int = 0,
) -> Workload:
    """Build `count` requests (None: as many as the workload specifies or has). `render` turns a chat into token ids.

    `held_back`: lines at the end of a file to leave for `build_unmeasured_requests`, if there are more than needed.
    The workload's seed and `seed` both apply. Without a tokenizer only prompt files work.
    Raises ConfigError if lengths are impossible or the workload has too few requests.
    """
    count = spec.requests if count is None else check_whole_number("workload.requests", count)
    if isinstance(spec, JsonlSpec):
        workload = _build_from_jsonl(spec, tokenizer, count, seed, render, held_back)
    elif isinstance(spec, TraceSpec):
        workload = _build_from_trace(
            spec, PromptWriter(_require_tokenizer(tokenizer), spec.send, render), count, seed, context_length
        )
    else:
        workload = Workload(tuple(_build_synthetic(spec, tokenizer, count, seed, context_length, render)))
    _check_fits_context(workload.requests, context_length)
    return workload


def build_unmeasured_requests(
    spec: WorkloadSpec,
    tokenizer: TextTokenizer | None,
    count: int,
    seed: int,
    *,
    before: int = 0,
    context_length: int | None = None,
    render: ChatRender | None = None,
) -> tuple[Request, ...]:
    """Build up to `count` requests that are not measured, such as warm-up.

    From a file they are the last lines before the final `before` lines. If the file is too short, lines repeat; lines
    that do not fit the context are skipped. Generated prompts differ from the measured ones by their seed.
    """
    if isinstance(spec, SyntheticSpec):
        return build_workload(spec, tokenizer, count, seed, context_length=context_length, render=render).requests
    if isinstance(spec, TraceSpec):
        writer = PromptWriter(_require_tokenizer(tokenizer), spec.send, render)
        return _build_from_trace(spec, writer, count, seed, context_length, enough=1).requests
    lines = read_prompt_lines(spec.path)
    end = len(lines) - before
    chosen = lines[max(end - count, 0) : end] if end > 0 else lines[-count:]
    workload = _build_requests(spec, chosen, tokenizer, make_generator(spec.seed, seed), render)
    return tuple(request for request in workload.requests if _fits_context(request, context_length))


def _build_synthetic(
    spec: SyntheticSpec,
    tokenizer: TextTokenizer | None,
    count: int | None,
    seed: int,
    context: int | None,
    render: ChatRender | None,
) -> list[Request]:
    if count is None:
        raise ConfigError(
            "a synthetic workload needs a number of requests", "set workload.requests", param="workload.requests"
        )
    if isinstance(spec.input_tokens, int):  # fail before spending time on writing prompts
        output = spec.output_tokens if isinstance(spec.output_tokens, int) else 1
        _check_fits_context([Request((), spec.input_tokens, output)], context)
    return write_synthetic_requests(spec, PromptWriter(_require_tokenizer(tokenizer), spec.send, render), count, seed)


def _build_from_trace(
    spec: TraceSpec, writer: PromptWriter, count: int | None, seed: int, context: int | None, enough: int | None = None
) -> Workload:
    """Build from a trace; `enough` rows suffice even if `count` is higher."""
    rows, notes = select_rows(read_trace(spec.path, spec.format), spec.start_s, count, context, spec.too_long)
    _check_count(len(rows), count if enough is None else enough, str(spec.path))
    return Workload(tuple(write_trace_requests(rows, writer, spec.block_tokens, (spec.seed, seed))), tuple(notes))


def _build_from_jsonl(
    spec: JsonlSpec,
    tokenizer: TextTokenizer | None,
    count: int | None,
    seed: int,
    render: ChatRender | None,
    held_back: int,
) -> Workload:
    lines = read_prompt_lines(spec.path)
    count = len(lines) if count is None else count
    if not spec.repeat:
        _check_count(len(lines), count, str(spec.path))
    lines = lines[: max(len(lines) - held_back, min(count, len(lines)))]
    rng = make_generator(spec.seed, seed)
    if spec.shuffle:
        lines = [lines[index] for index in rng.permutation(len(lines)).tolist()]
    chosen = [lines[index % len(lines)] for index in range(count)]
    return _build_requests(spec, chosen, tokenizer, rng, render)


def _build_requests(
    spec: JsonlSpec, chosen: Sequence[PromptLine], tokenizer: TextTokenizer | None, rng: Any, render: ChatRender | None
) -> Workload:
    """Build the requests of these lines."""
    count = len(chosen)
    drawn_lengths = [None] * count if spec.output_tokens is None else draw_lengths(spec.output_tokens, count, rng)
    requests, encoded = [], list[Any]()
    for (prompt, line_length, group), drawn_length in zip(chosen, drawn_lengths, strict=True):
        shortened = (
            prompt if spec.max_input_tokens is None else cut_prompt(prompt, spec.max_input_tokens, tokenizer, render)
        )
        ids = encode_prompt(shortened, tokenizer, render)
        encoded.append(shortened if ids is None or ids is shortened else to_compact_ids(ids))
        length = None if ids is None else len(ids)
        requests.append(Request(shortened, length, drawn_length if line_length is None else line_length, group=group))
    return Workload(tuple(requests), shared=measure_shared_share(encoded))


def _require_tokenizer(tokenizer: TextTokenizer | None) -> TextTokenizer:
    if tokenizer is None:
        raise missing_tokenizer_error()
    return tokenizer


def _check_count(available: int, needed: int | None, source: str) -> None:
    if not available or (needed is not None and needed > available):
        detail = "" if needed is None else f", but {needed} are needed"
        raise ConfigError(
            f"{source} has {available} requests to send{detail}",
            "lower the number of requests",
            param="workload.requests",
        )


def _check_fits_context(requests: Sequence[Request], context_length: int | None) -> None:
    """Raise if a prompt and its response, of at least one token, do not fit the model's context."""
    for request in requests:
        if not _fits_context(request, context_length):
            length, output = request.input_tokens or 0, request.output_tokens or 1
            raise ConfigError(
                f"{length} input plus {output} output tokens exceed the model's context length of {context_length} tokens",
                "lower input_tokens or output_tokens, or set a max on their distributions",
                param="workload.input_tokens",
            )


def _fits_context(request: Request, context_length: int | None) -> bool:
    return context_length is None or (request.input_tokens or 0) + (request.output_tokens or 1) <= context_length


def hash_requests(requests: Sequence[Request]) -> str:
    """Return the hash of all that is sent, which identifies a workload."""
    digest = hashlib.sha256()
    for request in requests:
        prompt = request.prompt if isinstance(request.prompt, str) else list(request.prompt)
        row = [prompt, request.input_tokens, request.output_tokens, request.at_s, request.group]
        digest.update(json.dumps(row, sort_keys=True, separators=(",", ":")).encode() + b"\n")
    return digest.hexdigest()


def write_synthetic_requests(spec: SyntheticSpec, writer: PromptWriter, count: int, seed: int) -> list[Request]:
    """Write requests that differ from the first word after the shared prefix."""
    inputs = draw_lengths(spec.input_tokens, count, make_generator(spec.seed, seed, 0))
    outputs = _draw_output_lengths(spec, count, seed)
    rng = make_generator(spec.seed, seed, 2)
    prefixes = [writer.draw_words(spec.shared_prefix_tokens, rng) for _ in range(spec.prefix_groups)]
    digits = writer.count_digits(count)
    if min(inputs) - spec.shared_prefix_tokens < digits:
        raise ConfigError(
            f"cannot write {count} different prompts of {min(inputs) - spec.shared_prefix_tokens} tokens each",
            "raise input_tokens, or lower the number of requests",
            param="workload.input_tokens",
        )
    order = rng.permutation(count).tolist()
    groups = rng.integers(spec.prefix_groups, size=count).tolist()
    requests = []
    for number, group, length, output in zip(order, groups, inputs, outputs, strict=True):
        start = [*prefixes[group], *writer.number_to_words(number, digits)]
        prompt = writer.write(start, length, rng, keep=len(start))
        requests.append(Request(prompt, length if writer.counts_whole_prompt else None, output))
    return requests


def _draw_output_lengths(spec: SyntheticSpec, count: int, seed: int) -> Sequence[int | None]:
    if spec.output_tokens is None:
        return [None] * count
    return draw_lengths(spec.output_tokens, count, make_generator(spec.seed, seed, 1))


def write_trace_requests(
    rows: Sequence[TraceRow], writer: PromptWriter, block_tokens: int, seeds: tuple[int, int]
) -> list[Request]:
    """Write the requests of a trace. Blocks with the same hash id share their words; everything else differs."""

    @lru_cache(maxsize=65536)
    def draw_block(hash_id: int) -> tuple[int, ...]:
        return tuple(writer.draw_words(block_tokens, make_generator(*seeds, 3, hash_id)))

    rng = make_generator(*seeds, 4)
    digits = writer.count_digits(len(rows))
    requests = []
    for number, row in enumerate(rows):
        start = [word for hash_id in row.hash_ids for word in draw_block(hash_id)]
        if len(start) < row.input_tokens:
            start += writer.number_to_words(number, digits)
        prompt = writer.write(start[: row.input_tokens], row.input_tokens, rng)
        known = row.input_tokens if writer.counts_whole_prompt else None
        requests.append(Request(prompt, known, row.output_tokens, at_s=row.at_s))
    return requests
