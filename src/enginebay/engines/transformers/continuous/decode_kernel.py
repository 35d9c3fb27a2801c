"""A Triton kernel for decode attention on CUDA: one new token per row over its bucket, reading only the row's own length.

The library's kernels need a mask for rows of different lengths and read every row up to the longest. Few rows are split
along their length to keep the whole device busy; a second kernel merges the splits.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl

# One block of a head's keys. The shared memory of small GPUs holds a few of them.
_MAX_BLOCK_POSITIONS, _MAX_BLOCK_BYTES = 64, 16_384
_MIN_DOT_ROWS = 16  # minimum rows of a matrix product
_MIN_SPLIT_POSITIONS = 256  # minimum positions per split, for a row that fills its bucket or window
_MAX_SPLITS = 32
# Target number of programs per multiprocessor. Many are nearly empty: the padding rows of a captured step.
_PROGRAMS_PER_MULTIPROCESSOR = 8

# Triton recompiles for new divisors and alignments of its arguments, unless they are listed. These change during serving.


@triton.jit(do_not_specialize=["tops", "totals", "rows", "positions", "window"])  # type: ignore[untyped-decorator]
def _decode_attention_kernel(  # type: ignore[no-untyped-def]  # Triton interprets annotations as its own types
    query, keys, values, out, tops, totals, rows, positions, scale, window,
    query_row, query_head, bucket_row, bucket_head,
    GROUP: tl.constexpr, LINES: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """One program per row, key head and split; the query heads that share the key head are the rows of a matrix.

    Without splits, `out` [rows, heads, size] receives the result. With splits, `out` [rows, heads, parts, size] receives the
    weighted sum of values, `tops` [rows, heads, parts] the highest score, and `totals` the sum of weights relative to it.
    """
    row, head, number = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    heads, parts = tl.num_programs(1) * GROUP, tl.num_programs(2)
    line, part, step = tl.arange(0, LINES), tl.arange(0, SIZE), tl.arange(0, BLOCK)
    stop = (tl.load(positions + row) + 1).to(tl.int32)
    first = tl.maximum(stop - window, 0)
    begin = first // BLOCK * BLOCK
    share = tl.cdiv(tl.cdiv(stop - begin, BLOCK), parts) * BLOCK
    begin += number * share
    base = tl.load(rows + row) * bucket_row + head.to(tl.int64) * bucket_head
    query_heads = head * GROUP + line
    queries = tl.load(
        query + row * query_row + query_heads[:, None] * query_head + part, mask=line[:, None] < GROUP, other=0.0
    )
    highest = tl.full([LINES], -float("inf"), tl.float32)
    total = tl.zeros([LINES], tl.float32)
    result = tl.zeros([LINES, SIZE], tl.float32)
    for block in range(begin, tl.minimum(begin + share, stop), BLOCK):
        at = block + step
        inside = (at >= first) & (at < stop)
        offset = base + at[:, None] * SIZE + part
        key_block = tl.load(keys + offset, mask=inside[:, None], other=0.0)
        score = tl.dot(queries, tl.trans(key_block), input_precision="ieee") * scale
        score = tl.where(inside, score, -float("inf"))
        higher = tl.maximum(highest, tl.max(score, 1))
        weight = tl.exp(score - higher[:, None])
        fade = tl.exp(highest - higher)
        total = total * fade + tl.sum(weight, 1)
        value_block = tl.load(values + offset, mask=inside[:, None], other=0.0)
        result = result * fade[:, None] + tl.dot(weight.to(value_block.dtype), value_block, input_precision="ieee")
        highest = higher
    index = (row * heads + query_heads) * parts + number
    if SPLIT:
        tl.store(tops + index, highest, mask=line < GROUP)
        tl.store(totals + index, total, mask=line < GROUP)
    else:
        result = result / total[:, None]
    tl.store(out + index[:, None] * SIZE + part, result.to(out.dtype.element_ty), mask=line[:, None] < GROUP)


@triton.jit(do_not_specialize=["tops", "totals", "parts"])  # type: ignore[untyped-decorator]
def _merge_splits_kernel(sums, tops, totals, out, parts, SIZE: tl.constexpr, MOST: tl.constexpr):  # type: ignore[no-untyped-def]
    """One program per row and query head. The first split is never empty; the others may be."""
    head = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
    number, part = tl.arange(0, MOST), tl.arange(0, SIZE)
    index, valid = head * parts + number, number < parts
    top = tl.load(tops + index, mask=valid, other=-float("inf"))
    weight = tl.exp(top - tl.max(top, 0))
    total = tl.sum(weight * tl.load(totals + index, mask=valid, other=0.0), 0)
    partial_sums = tl.load(sums + index[:, None] * SIZE + part, mask=valid[:, None], other=0.0)
    result = tl.sum(weight[:, None] * partial_sums, 0) / total
    tl.store(out + head * SIZE + part, result.to(out.dtype.element_ty))


def supports(query: Any, keys: Any, values: Any) -> bool:
    """Return whether the kernel supports this head size, dtype and layout."""
    size = keys.shape[3]
    return bool(
        size in (64, 128, 256)
        and values.shape[3] == size
        and keys.dtype == values.dtype == query.dtype
        and keys.dtype in (torch.float16, torch.bfloat16, torch.float32)
        and keys.is_contiguous()
        and values.is_contiguous()
    )


def choose_num_splits(programs: int, positions: int, processors: int) -> int:
    """Return the number of splits per row, from shapes alone: a captured step does not know the lengths of its rows."""
    return max(
        1, min(_PROGRAMS_PER_MULTIPROCESSOR * processors // programs, positions // _MIN_SPLIT_POSITIONS, _MAX_SPLITS)
    )


def attend(
    query: Any, keys: Any, values: Any, rows: Any, positions: Any, scale: float | None, window: int | None
) -> Any:
    """Attend. query: [rows, heads, size]; keys, values: [bucket rows, kv heads, capacity, size]; returns [rows, heads, size]."""
    count, heads, size = query.shape
    kv_heads, capacity = keys.shape[1:3]
    shared = heads // kv_heads
    block = min(_MAX_BLOCK_POSITIONS, _MAX_BLOCK_BYTES // (size * keys.element_size()))
    max_length = capacity if window is None else min(window, capacity)
    parts = choose_num_splits(count * kv_heads, max_length, _count_multiprocessors(keys.device))
    if query.stride(2) != 1:
        query = query.contiguous()
    out = query.new_empty(count, heads, size)
    sums = tops = totals = out
    if parts > 1:
        sums = torch.empty(count, heads, parts, size, dtype=torch.float32, device=out.device)
        tops, totals = torch.empty(2, count, heads, parts, dtype=torch.float32, device=out.device)
    with torch.cuda.device_of(keys):
        _decode_attention_kernel[(count, kv_heads, parts)](
            query, keys, values, sums, tops, totals, rows, positions,
            size**-0.5 if scale is None else scale, max_length,
            query.stride(0), query.stride(1), keys.stride(0), keys.stride(1),
            GROUP=shared, LINES=max(_MIN_DOT_ROWS, triton.next_power_of_2(shared)), SIZE=size, BLOCK=block, SPLIT=parts > 1,
        )  # fmt: skip
        if parts > 1:
            _merge_splits_kernel[(count, heads)](sums, tops, totals, out, parts, SIZE=size, MOST=_MAX_SPLITS)
    return out


@cache
def _count_multiprocessors(device: Any) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count) if device.type == "cuda" else 16
