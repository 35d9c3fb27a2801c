"""Attention over a step's packed tokens: each row sees its own shelf and nothing else.

A step is one sequence, [1, tokens]: first one token for each decoding row, shelf by shelf, then runs of prompt tokens.
Everything but attention works token by token and does not care; there is no padding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from enginebay.engines.transformers.schedule import Segment
from enginebay.engines.transformers.shelves import Shelf, ShelfCache

NAME = "enginebay"
_STRIDE = 64  # attention lengths are multiples of this, so that few shapes occur


@dataclass(slots=True)
class Decoding:
    """One token for each of some rows of a shelf. `rows` and `positions` say where the tokens go in the shelf."""

    shelf: Shelf
    rows: Any
    positions: Any
    begin: int  # of its tokens in the step
    reach: int  # cached positions that attention reads
    height: int  # rows of the shelf that attention reads
    whole: bool  # every row of the shelf takes part, in order
    masks: dict[tuple[Any, int | None, Any], Any] = field(default_factory=dict)
    slots: dict[tuple[Any, int, int], Any] = field(default_factory=dict)

    def write(self, shelf: Any, new: Any) -> None:
        """Put new keys or values [rows, heads, size] in place. One flat copy; the indices are the same for all layers."""
        height, heads, capacity, size = shelf.shape
        key = (shelf.device, heads, capacity)
        if key not in self.slots:
            lines = self.rows.to(shelf.device)[:, None] * heads + torch.arange(heads, device=shelf.device)
            self.slots[key] = (lines * capacity + self.positions.to(shelf.device)[:, None]).flatten()
        shelf.view(height * heads * capacity, size).index_copy_(0, self.slots[key], new.reshape(-1, size))

    def mask(self, like: Any, window: int | None) -> Any:
        """Additive mask [rows, 1, 1, reach]; the same for all layers with this window."""
        key = (like.device, window, like.dtype)
        if key not in self.masks:
            places = torch.arange(self.reach, device=like.device)
            last = self.positions.to(like.device)[:, None]
            seen = places <= last
            if window is not None:
                seen &= places > last - window
            mask = torch.zeros(seen.shape, dtype=like.dtype, device=like.device)
            mask.masked_fill_(~seen, torch.finfo(like.dtype).min)
            self.masks[key] = mask[:, None, None, :]
        return self.masks[key]


@dataclass(frozen=True, slots=True)
class Prefill:
    """A run of one row's tokens."""

    shelf: Shelf
    row: int
    start: int  # in the row
    begin: int  # in the step
    count: int


@dataclass(slots=True)
class Layout:
    """Where each token of a step belongs. `order`: segments in the order of the step's tokens."""

    order: list[Segment]
    decoding: list[Decoding]
    prefills: list[Prefill]


def lay_out(segments: Sequence[Segment], cache: ShelfCache, device: Any) -> Layout:
    """Put the segments of a step in order."""
    by_shelf: dict[int, list[tuple[int, Segment]]] = {}
    longer: list[Segment] = []
    for segment in segments:
        if len(segment.tokens) == 1 and segment.start > 0:
            shelf, index = cache.place(segment.key)
            by_shelf.setdefault(shelf.capacity, []).append((index, segment))
        else:
            longer.append(segment)
    order: list[Segment] = []
    decoding = []
    for members in by_shelf.values():
        members.sort(key=lambda member: member[0])
        shelf, _ = cache.place(members[0][1].key)
        decoding.append(_decoding(shelf, members, len(order), device))
        order += [segment for _, segment in members]
    prefills = []
    begin = len(order)
    for segment in longer:
        shelf, index = cache.place(segment.key)
        prefills.append(Prefill(shelf, index, segment.start, begin, len(segment.tokens)))
        begin += len(segment.tokens)
    return Layout(order + longer, decoding, prefills)


def _decoding(shelf: Shelf, members: list[tuple[int, Segment]], begin: int, device: Any) -> Decoding:
    rows = [index for index, _ in members]
    positions = [segment.start for _, segment in members]
    reach = min(shelf.capacity, math.ceil((max(positions) + 1) / _STRIDE) * _STRIDE)
    return Decoding(
        shelf,
        torch.tensor(rows, device=device),
        torch.tensor(positions, device=device),
        begin,
        reach,
        rows[-1] + 1,
        whole=rows == list(range(len(rows))),
    )


class ShelfAttention:
    """The attention function the model calls during our steps; `layout` is set for each step."""

    def __init__(self, eager: bool) -> None:
        self.layout: Layout | None = None
        self._attend = _eager if eager else scaled_dot_product_attention

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # its shapes change with every step
    def __call__(
        self,
        module: Any,
        query: Any,
        key: Any,
        value: Any,
        attention_mask: Any,
        scaling: float | None = None,
        sliding_window: int | None = None,
        **kwargs: Any,
    ) -> tuple[Any, None]:
        """query, key, value: [1, heads, tokens, head size]; returns [1, tokens, heads, head size]."""
        if self.layout is None or attention_mask is not None or kwargs.get("softcap") is not None or "s_aux" in kwargs:
            raise NotImplementedError("this model's attention has more to it than keys, values and a window")
        layer, layout = module.layer_idx, self.layout
        if len(layout.decoding) == 1 and not layout.prefills:
            return self._decode(layer, layout.decoding[0], query, key, value, scaling, sliding_window)[None], None
        out = value.new_empty(1, query.shape[2], query.shape[1], value.shape[3])
        for group in layout.decoding:
            place = slice(group.begin, group.begin + len(group.rows))
            out[0, place] = self._decode(layer, group, query, key, value, scaling, sliding_window)
        for run in layout.prefills:
            place = slice(run.begin, run.begin + run.count)
            out[0, place] = self._prefill(layer, run, query, key, value, scaling, sliding_window)
        return out, None

    def _decode(
        self, layer: int, group: Decoding, query: Any, key: Any, value: Any, scaling: float | None, window: int | None
    ) -> Any:
        """[rows, heads, size]"""
        place = slice(group.begin, group.begin + len(group.rows))
        keys, values = group.shelf.tensors(layer, key, value)
        group.write(keys, key[0, :, place].transpose(0, 1))
        group.write(values, value[0, :, place].transpose(0, 1))
        # Query heads that share a key head stand side by side as if they were positions: no copy of the keys for each.
        count, heads = len(group.rows), keys.shape[1]
        asked = query[0, :, place].transpose(0, 1).reshape(count, heads, -1, query.shape[3])
        which = slice(0, group.height) if group.whole else group.rows.to(keys.device)
        seen_keys, seen_values = keys[which, :, : group.reach], values[which, :, : group.reach]
        answer = self._attend(asked, seen_keys, seen_values, attn_mask=group.mask(query, window), scale=scaling)
        return answer.reshape(count, -1, value.shape[3])

    def _prefill(
        self, layer: int, run: Prefill, query: Any, key: Any, value: Any, scaling: float | None, window: int | None
    ) -> Any:
        """[tokens, heads, size]"""
        place, stop = slice(run.begin, run.begin + run.count), run.start + run.count
        keys, values = run.shelf.tensors(layer, key, value)
        keys[run.row, :, run.start : stop] = key[0, :, place]
        values[run.row, :, run.start : stop] = value[0, :, place]
        groups = query.shape[1] // key.shape[1]
        seen_keys = keys[run.row : run.row + 1, :, :stop].repeat_interleave(groups, dim=1)
        seen_values = values[run.row : run.row + 1, :, :stop].repeat_interleave(groups, dim=1)
        plain = run.start == 0 and (window is None or stop <= window)
        mask = None if plain else _band(run.start, stop, window, query)
        answer = self._attend(
            query[:, :, place], seen_keys, seen_values, attn_mask=mask, is_causal=plain, scale=scaling
        )
        return answer[0].transpose(0, 1)


def _band(start: int, stop: int, window: int | None, like: Any) -> Any:
    """Additive mask of positions start..stop over the cached positions up to each, at most a window back."""
    mine = torch.arange(start, stop, device=like.device)[:, None]
    theirs = torch.arange(stop, device=like.device)
    seen = theirs <= mine
    if window is not None:
        seen &= theirs > mine - window
    mask = torch.zeros(seen.shape, dtype=like.dtype, device=like.device)
    return mask.masked_fill_(~seen, torch.finfo(like.dtype).min)


def _eager(
    query: Any, keys: Any, values: Any, attn_mask: Any = None, is_causal: bool = False, scale: float | None = None
) -> Any:
    """Attention written out, for `attn_implementation: eager`."""
    weights = query @ keys.transpose(2, 3) * (scale if scale is not None else query.shape[-1] ** -0.5)
    if is_causal:
        attn_mask = _band(0, query.shape[2], None, query)
    if attn_mask is not None:
        weights = weights + attn_mask
    return weights.softmax(dim=-1, dtype=torch.float32).to(query.dtype) @ values
