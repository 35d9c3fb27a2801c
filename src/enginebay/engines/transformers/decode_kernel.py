"""Attention of one new token for each row over what its shelf holds, for CUDA: a row reads its own length and no further.

The library's kernels want a mask for rows of different lengths, and then read every row as far as the longest goes.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

# Of a head's keys, at a time. Shared memory holds a few such blocks, on small GPUs too.
_MOST_POSITIONS, _MOST_BYTES = 64, 16_384
_LEAST = 16  # lines that a matrix product takes at least


@triton.jit  # type: ignore[untyped-decorator]
def _kernel(  # type: ignore[no-untyped-def]  # the compiler reads annotations: they would be types of its own
    query, keys, values, out, rows, positions, scale, window,
    query_row, query_head, shelf_row, shelf_head, out_row,
    GROUP: tl.constexpr, LINES: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program for a row and a key head; the query heads that share it are the lines of a matrix."""
    row, head = tl.program_id(0), tl.program_id(1)
    line, part, step = tl.arange(0, LINES), tl.arange(0, SIZE), tl.arange(0, BLOCK)
    stop = (tl.load(positions + row) + 1).to(tl.int32)
    first = tl.maximum(stop - window, 0)
    shelf = tl.load(rows + row) * shelf_row + head.to(tl.int64) * shelf_head
    mine = (head * GROUP + line)[:, None]
    asked = tl.load(query + row * query_row + mine * query_head + part, mask=line[:, None] < GROUP, other=0.0)
    highest = tl.full([LINES], -float("inf"), tl.float32)
    total = tl.zeros([LINES], tl.float32)
    answer = tl.zeros([LINES, SIZE], tl.float32)
    for begin in range(first // BLOCK * BLOCK, stop, BLOCK):
        at = begin + step
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
    answer = answer / total[:, None]
    place = out + row * out_row + mine * SIZE + part
    tl.store(place, answer.to(out.dtype.element_ty), mask=line[:, None] < GROUP)


def takes(query: Any, keys: Any, values: Any) -> bool:
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


def attend(
    query: Any, keys: Any, values: Any, rows: Any, positions: Any, scale: float | None, window: int | None
) -> Any:
    """query: [rows, heads, size]; keys, values: the shelf's [all rows, kv heads, capacity, size]. [rows, heads, size]"""
    count, heads, size = query.shape
    shared = heads // keys.shape[1]
    if query.stride(2) != 1:
        query = query.contiguous()
    out = query.new_empty(count, heads, size)
    with torch.cuda.device_of(keys):
        _kernel[(count, keys.shape[1])](
            query, keys, values, out, rows, positions,
            size**-0.5 if scale is None else scale, keys.shape[2] if window is None else window,
            query.stride(0), query.stride(1), keys.stride(0), keys.stride(1), out.stride(0),
            GROUP=shared, LINES=max(_LEAST, triton.next_power_of_2(shared)), SIZE=size,
            BLOCK=min(_MOST_POSITIONS, _MOST_BYTES // (size * keys.element_size())),
        )  # fmt: skip
    return out
