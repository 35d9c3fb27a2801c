"""`flash_attn_with_kvcache` for one new token per sequence, in Triton: what the library calls to decode from its paged KV cache.

It appends the new keys and values to their pages, then attends to each sequence's own length. A batch of few sequences is split
along their length, as FlashAttention and our own decode kernel do it; that kernel's second half merges the splits.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from enginebay.engines.transformers.continuous import decode_kernel

_BLOCK = 64  # positions read at once; a page holds a multiple of it


@triton.jit  # type: ignore[untyped-decorator]
def _append_kernel(  # type: ignore[no-untyped-def]  # Triton interprets annotations as its own types
    keys, values, new_keys, new_values, table, lengths, table_row, new_row,
    PAGE: tl.constexpr, WIDTH: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """One program per sequence. A padding sequence has length -1 and no page."""
    row = tl.program_id(0)
    length = tl.load(lengths + row)
    lane = tl.arange(0, LANES)
    inside = (lane < WIDTH) & (length >= 0)
    page = tl.load(table + row * table_row + tl.maximum(length, 0) // PAGE).to(tl.int64)
    target = (page * PAGE + length % PAGE) * WIDTH + lane
    tl.store(keys + target, tl.load(new_keys + row * new_row + lane, mask=inside), mask=inside)
    tl.store(values + target, tl.load(new_values + row * new_row + lane, mask=inside), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _attend_kernel(  # type: ignore[no-untyped-def]
    query, keys, values, out, tops, totals, table, lengths, scale, query_row, query_head, table_row,
    PAGE: tl.constexpr, GROUP: tl.constexpr, LINES: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr,
    SPLIT: tl.constexpr,
):  # fmt: skip
    """One program per sequence, key head and split, like the kernel of `decode_kernel`, but page by page."""
    row, head, number = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    kv_heads, parts = tl.num_programs(1), tl.num_programs(2)
    line, part, step = tl.arange(0, LINES), tl.arange(0, SIZE), tl.arange(0, BLOCK)
    stop = tl.load(lengths + row) + 1
    share = tl.cdiv(tl.cdiv(stop, BLOCK), parts) * BLOCK
    begin = number * share
    query_heads = head * GROUP + line
    queries = tl.load(
        query + row * query_row + query_heads[:, None] * query_head + part, mask=line[:, None] < GROUP, other=0.0
    )
    highest = tl.full([LINES], -float("inf"), tl.float32)
    total = tl.zeros([LINES], tl.float32)
    result = tl.zeros([LINES, SIZE], tl.float32)
    for block in range(begin, tl.minimum(begin + share, stop), BLOCK):
        inside = block + step < stop
        page = tl.load(table + row * table_row + block // PAGE).to(tl.int64)
        slot = page * PAGE + block % PAGE + step
        offset = (slot * kv_heads + head)[:, None] * SIZE + part
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
    index = (row * kv_heads * GROUP + query_heads) * parts + number
    if SPLIT:
        tl.store(tops + index, highest, mask=line < GROUP)
        tl.store(totals + index, total, mask=line < GROUP)
    else:
        result = result / total[:, None]
    tl.store(out + index[:, None] * SIZE + part, result.to(out.dtype.element_ty), mask=line[:, None] < GROUP)


def attend(
    q: Any, k_cache: Any, v_cache: Any, k: Any, v: Any, softmax_scale: float | None, block_table: Any,
    cache_seqlens: Any,
) -> Any:  # fmt: skip
    """q: [rows, 1, heads, size]; caches: [pages, page, kv heads, size]; k, v: [rows, 1, kv heads, size]; returns like q."""
    rows, _, heads, size = q.shape
    page, kv_heads = k_cache.shape[1:3]
    shared, width = heads // kv_heads, kv_heads * size
    k, v, q = k.contiguous(), v.contiguous(), q.contiguous()
    _append_kernel[(rows,)](
        k_cache, v_cache, k, v, block_table, cache_seqlens, block_table.stride(0), k.stride(0),
        PAGE=page, WIDTH=width, LANES=triton.next_power_of_2(width),
    )  # fmt: skip
    parts = decode_kernel.choose_num_splits(
        rows * kv_heads, block_table.shape[1] * page, decode_kernel._count_multiprocessors(k_cache.device)
    )
    out = torch.empty_like(q)
    sums = tops = totals = out
    if parts > 1:
        sums = torch.empty(rows, heads, parts, size, dtype=torch.float32, device=q.device)
        tops, totals = torch.empty(2, rows, heads, parts, dtype=torch.float32, device=q.device)
    _attend_kernel[(rows, kv_heads, parts)](
        q, k_cache, v_cache, sums, tops, totals, block_table, cache_seqlens,
        size**-0.5 if softmax_scale is None else softmax_scale, q.stride(0), q.stride(2), block_table.stride(0),
        PAGE=page, GROUP=shared, LINES=max(16, triton.next_power_of_2(shared)), SIZE=size, BLOCK=_BLOCK, SPLIT=parts > 1,
    )  # fmt: skip
    if parts > 1:
        decode_kernel._merge_splits_kernel[(rows, heads)](
            sums, tops, totals, out, parts, SIZE=size, MOST=decode_kernel._MAX_SPLITS
        )
    return out
