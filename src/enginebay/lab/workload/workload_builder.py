"""From a workload's description to the requests themselves: the same for the same seed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from enginebay.errors import ConfigError
from enginebay.lab.workload.field_checks import check_whole_number
from enginebay.lab.workload.jsonl_prompts import PromptLine, cut_prompt, encode_prompt, read_prompt_lines
from enginebay.lab.workload.length_distributions import draw_lengths
from enginebay.lab.workload.prefix_sharing import measure_shared_share, to_compact_ids
from enginebay.lab.workload.prompt_writer import PromptWriter
from enginebay.lab.workload.request_records import Prompt, Request
from enginebay.lab.workload.seeded_random import make_generator
from enginebay.lab.workload.synthetic_requests import write_synthetic_requests, write_trace_requests
from enginebay.lab.workload.trace_files import read_trace, select_rows
from enginebay.lab.workload.workload_spec import (
    ChatRender,
    JsonlSpec,
    SyntheticSpec,
    TextTokenizer,
    TraceSpec,
    WorkloadSpec,
)


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests, and what was left out or changed to make them, in words."""

    requests: tuple[Request, ...]
    notes: tuple[str, ...] = ()
    shared: float | None = None  # the share of a file's input that begins another prompt too; None: not known


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
    """So many requests (None: as many as the workload says or has). `render` gives the token ids of a chat.

    `held_back`: so many lines at the end of a file are left to `make_others`, as far as it has more than are asked for.
    The workload's own seed and this one both count. Without a tokenizer only files of prompts can be sent.
    Raises ConfigError where lengths are impossible or the workload has fewer requests than asked for.
    """
    count = spec.requests if count is None else check_whole_number("workload.requests", count)
    if isinstance(spec, JsonlSpec):
        made = _build_from_jsonl(spec, tokenizer, count, seed, render, held_back)
    elif isinstance(spec, TraceSpec):
        made = _build_from_trace(
            spec, PromptWriter(_require_tokenizer(tokenizer), spec.send, render), count, seed, context_length
        )
    else:
        made = Workload(tuple(_build_synthetic(spec, tokenizer, count, seed, context_length, render)))
    _check_fits_context(made.requests, context_length)
    return made


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
    """Requests for what is not measured: `count` of them, or as many as the workload has.

    Of a file they are its last lines, those before the last `before`; where it is too short for that, lines are sent
    twice, and lines that do not fit the context are left out. Made-up prompts are others than the measured ones by
    their seed.
    """
    if isinstance(spec, SyntheticSpec):
        return build_workload(spec, tokenizer, count, seed, context_length=context_length, render=render).requests
    if isinstance(spec, TraceSpec):
        writer = PromptWriter(_require_tokenizer(tokenizer), spec.send, render)
        return _build_from_trace(spec, writer, count, seed, context_length, enough=1).requests
    lines = read_prompt_lines(spec.path)
    end = len(lines) - before
    chosen = lines[max(end - count, 0) : end] if end > 0 else lines[-count:]
    made = _build_requests(spec, chosen, tokenizer, make_generator(spec.seed, seed), render)
    return tuple(one for one in made.requests if _fits_context(one, context_length))


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
            "a synthetic workload has no end", "say how many: workload.requests", param="workload.requests"
        )
    if isinstance(spec.input_tokens, int):  # said before time is spent on writing them
        output = spec.output_tokens if isinstance(spec.output_tokens, int) else 1
        _check_fits_context([Request((), spec.input_tokens, output)], context)
    return write_synthetic_requests(spec, PromptWriter(_require_tokenizer(tokenizer), spec.send, render), count, seed)


def _build_from_trace(
    spec: TraceSpec,
    writer: PromptWriter,
    count: int | None,
    seed: int,
    context: int | None,
    enough: int | None = None,
) -> Workload:
    """`enough`: so many rows will do, where that is fewer than asked for."""
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
    chance = make_generator(spec.seed, seed)
    if spec.shuffle:
        lines = [lines[place] for place in chance.permutation(len(lines)).tolist()]
    chosen = [lines[place % len(lines)] for place in range(count)]
    return _build_requests(spec, chosen, tokenizer, chance, render)


def _build_requests(
    spec: JsonlSpec,
    chosen: Sequence[PromptLine],
    tokenizer: TextTokenizer | None,
    chance: Any,
    render: ChatRender | None,
) -> Workload:
    """The requests of these lines."""
    count = len(chosen)
    others = [None] * count if spec.output_tokens is None else draw_lengths(spec.output_tokens, count, chance)
    requests, read = [], list[Any]()
    for (prompt, wanted, group), other in zip(chosen, others, strict=True):
        kept = prompt if spec.max_input_tokens is None else cut_prompt(prompt, spec.max_input_tokens, tokenizer, render)
        ids = encode_prompt(kept, tokenizer, render)
        read.append(kept if ids is None or ids is kept else to_compact_ids(ids))
        length = None if ids is None else len(ids)
        requests.append(Request(kept, length, other if wanted is None else wanted, group=group))
    return Workload(tuple(requests), shared=measure_shared_share(read))


def _require_tokenizer(tokenizer: TextTokenizer | None) -> TextTokenizer:
    if tokenizer is None:
        raise missing_tokenizer_error()
    return tokenizer


def missing_tokenizer_error() -> ConfigError:
    """Why a synthetic workload or a trace cannot be written."""
    return ConfigError(
        "prompts of exact lengths need the model's tokenizer",
        "give --tokenizer MODEL_OR_PATH (a stored model, or the model's files), or take a workload of kind jsonl",
    )


def _check_count(there: int, wanted: int | None, what: str) -> None:
    if not there or (wanted is not None and wanted > there):
        asked = "" if wanted is None else f", and {wanted} are asked for"
        raise ConfigError(
            f"{what} has {there} requests to send{asked}", "ask for fewer requests", param="workload.requests"
        )


def _check_fits_context(requests: Sequence[Request], context_length: int | None) -> None:
    """Prompt and answer must fit the model's context, and an answer has at least one token."""
    for request in requests:
        if not _fits_context(request, context_length):
            length, output = request.input_tokens or 0, request.output_tokens or 1
            raise ConfigError(
                f"{length} tokens in and {output} out do not fit the model's context of {context_length}",
                "lower input_tokens or output_tokens, or give their distributions a max",
                param="workload.input_tokens",
            )


def _fits_context(request: Request, context_length: int | None) -> bool:
    return context_length is None or (request.input_tokens or 0) + (request.output_tokens or 1) <= context_length


def hash_requests(requests: Sequence[Request]) -> str:
    """What tells two workloads apart: the hash of all that is sent."""
    digest = hashlib.sha256()
    for one in requests:
        row = [_to_plain_prompt(one.prompt), one.input_tokens, one.output_tokens, one.at_s, one.group]
        digest.update(json.dumps(row, sort_keys=True, separators=(",", ":")).encode() + b"\n")
    return digest.hexdigest()


def _to_plain_prompt(prompt: Prompt) -> object:
    return prompt if isinstance(prompt, str) else list(prompt)
