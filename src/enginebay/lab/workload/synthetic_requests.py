"""Requests with generated prompts, for synthetic workloads and for traces."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from enginebay.errors import ConfigError
from enginebay.lab.workload.length_distributions import draw_lengths
from enginebay.lab.workload.prompt_writer import PromptWriter
from enginebay.lab.workload.request_records import Request
from enginebay.lab.workload.seeded_random import make_generator
from enginebay.lab.workload.trace_files import TraceRow
from enginebay.lab.workload.workload_spec import SyntheticSpec


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
