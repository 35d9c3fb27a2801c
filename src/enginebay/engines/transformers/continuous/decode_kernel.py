"""Attention of one new token for each row over what its shelf holds, for CUDA: a row reads its own length and no further.

The library's kernels want a mask for rows of different lengths, and then read every row as far as the longest goes. Few rows
are split into parts, so that they keep a whole device busy; what the parts found is put together afterwards.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl

# Of a head's keys, at a time. Shared memory holds a few such blocks, on small GPUs too.
_MAX_BLOCK_POSITIONS, _MAX_BLOCK_BYTES = 64, 16_384
_MIN_DOT_ROWS = 16  # lines that a matrix product takes at least
_MIN_SPLIT_POSITIONS = 256  # positions of a part, at least, if its row fills the shelf or its window
_MAX_SPLITS = 32
# Programs for each of the device's processors. Many have next to nothing to do: rows that fill a recorded step up are in it.
_PROGRAMS_PER_MULTIPROCESSOR = 8

# Unless they are named, arguments with other divisors or alignments are compiled for anew. These change while clients wait.


@triton.jit(do_not_specialize=["tops", "totals", "rows", "positions", "window"])  # type: ignore[untyped-decorator]
def _decode_attention_kernel(  # type: ignore[no-untyped-def]  # the compiler reads annotations: they would be types of its own
    query, keys, values, out, tops, totals, rows, positions, scale, window,
    query_row, query_head, shelf_row, shelf_head,
    GROUP: tl.constexpr, LINES: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """One program for a row, a key head and a part; the query heads that share the key head are the lines of a matrix.

    Unless it is split `out` [rows, heads, size] gets the answer. If it is, `out` [rows, heads, parts, size] gets the sum of
    values, `tops` [rows, heads, parts] the highest score, and `totals` the sum of weights as seen from there.
    """
    row, head, number = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    heads, parts = tl.num_programs(1) * GROUP, tl.num_programs(2)
    line, part, step = tl.arange(0, LINES), tl.arange(0, SIZE), tl.arange(0, BLOCK)
    stop = (tl.load(positions + row) + 1).to(tl.int32)
    first = tl.maximum(stop - window, 0)
    begin = first // BLOCK * BLOCK
    share = tl.cdiv(tl.cdiv(stop - begin, BLOCK), parts) * BLOCK
    begin += number * share
    shelf = tl.load(rows + row) * shelf_row + head.to(tl.int64) * shelf_head
    mine = head * GROUP + line
    asked = tl.load(query + row * query_row + mine[:, None] * query_head + part, mask=line[:, None] < GROUP, other=0.0)
    highest = tl.full([LINES], -float("inf"), tl.float32)
    total = tl.zeros([LINES], tl.float32)
    answer = tl.zeros([LINES, SIZE], tl.float32)
    for block in range(begin, tl.minimum(begin + share, stop), BLOCK):
        at = block + step
        inside = (at >= first) & (at < stop)
        place = shelf + at[:, None] * SIZE + part
        seen = tl.load(keys + place, mask=inside[:, None], other=0.0)
        score = tl.dot(asked, tl.trans(seen), input_precision="ieee") * scale
        score = tl.where(inside, score, -float("inf"))
        higher = tl.maximum(highest, tl.max(score, 1))
        weight = tl.exp(score - higher[:, None])
        fade = tl.exp(highest - higher)
        total = total * fade + tl.sum(weight, 1)
        said = tl.load(values + place, mask=inside[:, None], other=0.0)
        answer = answer * fade[:, None] + tl.dot(weight.to(said.dtype), said, input_precision="ieee")
        highest = higher
    place = (row * heads + mine) * parts + number
    if SPLIT:
        tl.store(tops + place, highest, mask=line < GROUP)
        tl.store(totals + place, total, mask=line < GROUP)
    else:
        answer = answer / total[:, None]
    tl.store(out + place[:, None] * SIZE + part, answer.to(out.dtype.element_ty), mask=line[:, None] < GROUP)


@triton.jit(do_not_specialize=["tops", "totals", "parts"])  # type: ignore[untyped-decorator]
def _merge_splits_kernel(sums, tops, totals, out, parts, SIZE: tl.constexpr, MOST: tl.constexpr):  # type: ignore[no-untyped-def]
    """One program for a row and a query head. The first part has something in it, others may have nothing."""
    mine = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
    number, part = tl.arange(0, MOST), tl.arange(0, SIZE)
    place, there = mine * parts + number, number < parts
    top = tl.load(tops + place, mask=there, other=-float("inf"))
    weight = tl.exp(top - tl.max(top, 0))
    total = tl.sum(weight * tl.load(totals + place, mask=there, other=0.0), 0)
    said = tl.load(sums + place[:, None] * SIZE + part, mask=there[:, None], other=0.0)
    answer = tl.sum(weight[:, None] * said, 0) / total
    tl.store(out + mine * SIZE + part, answer.to(out.dtype.element_ty))


def supports(query: Any, keys: Any, values: Any) -> bool:
    """Whether heads of this size and these tensors are ones that the kernel can read."""
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
    """Into how many parts each row is split. By shapes alone, for a recorded step does not know how long its rows will be."""
    return max(
        1, min(_PROGRAMS_PER_MULTIPROCESSOR * processors // programs, positions // _MIN_SPLIT_POSITIONS, _MAX_SPLITS)
    )


def attend(
    query: Any, keys: Any, values: Any, rows: Any, positions: Any, scale: float | None, window: int | None
) -> Any:
    """query: [rows, heads, size]; keys, values: the shelf's [all rows, kv heads, capacity, size]. [rows, heads, size]"""
    count, heads, size = query.shape
    kv_heads, capacity = keys.shape[1:3]
    shared = heads // kv_heads
    block = min(_MAX_BLOCK_POSITIONS, _MAX_BLOCK_BYTES // (size * keys.element_size()))
    reach = capacity if window is None else min(window, capacity)
    parts = choose_num_splits(count * kv_heads, reach, _count_multiprocessors(keys.device))
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
            size**-0.5 if scale is None else scale, reach,
            query.stride(0), query.stride(1), keys.stride(0), keys.stride(1),
            GROUP=shared, LINES=max(_MIN_DOT_ROWS, triton.next_power_of_2(shared)), SIZE=size, BLOCK=block, SPLIT=parts > 1,
        )  # fmt: skip
        if parts > 1:
            _merge_splits_kernel[(count, heads)](sums, tops, totals, out, parts, SIZE=size, MOST=_MAX_SPLITS)
    return out


@cache
def _count_multiprocessors(device: Any) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count) if device.type == "cuda" else 16
