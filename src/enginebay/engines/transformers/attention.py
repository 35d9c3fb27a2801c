"""Attention over a step's packed tokens: each row sees its own shelf and nothing else.

A step is one sequence, [1, tokens]: first one token for each decoding row, shelf by shelf, then runs of prompt tokens.
Everything but attention works token by token and does not care; there is no padding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch.nn.functional import scaled_dot_product_attention

from enginebay.engines.transformers.layout import Group, Layout, Prefill
from enginebay.engines.transformers.shelves import Shelf

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
    whole: bool  # the shelf's first rows take part, in order
    masks: dict[tuple[Any, int | None, Any], Any] = field(default_factory=dict)
    slots: dict[tuple[Any, int, int], Any] = field(default_factory=dict)

    @classmethod
    def of(cls, group: Group, device: Any) -> Decoding:
        reach = min(group.shelf.capacity, math.ceil(group.longest / _STRIDE) * _STRIDE)
        rows = torch.tensor(group.indices, device=device)
        positions = torch.tensor([segment.start for segment in group.segments], device=device)
        return cls(group.shelf, rows, positions, group.begin, reach, group.indices[-1] + 1, group.whole)

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


class Together:
    """Beginnings of several prompts on one shelf as one batch [runs, heads, longest, size], the shorter ones padded.

    A padding token repeats its run's last: it comes after all that is looked at, and where it is written nobody looks
    before the row's own next token is there.
    """

    def __init__(self, runs: Sequence[Prefill], device: Any) -> None:
        self.shelf = runs[0].shelf
        self.runs = runs
        self.longest = max(run.count for run in runs)
        self.begin, self.stop = runs[0].begin, runs[-1].begin + runs[-1].count
        self._rows = torch.tensor([run.row for run in runs], device=device)
        self._tokens: Any = None  # of the step, for each place of the batch; none when there is no padding
        if any(run.count < self.longest for run in runs):
            tokens = [run.begin + min(i, run.count - 1) for run in runs for i in range(self.longest)]
            kept = [at * self.longest + i for at, run in enumerate(runs) for i in range(run.count)]
            self._tokens, self._kept = torch.tensor(tokens, device=device), torch.tensor(kept, device=device)

    def batch(self, packed: Any) -> Any:
        """[heads, tokens, size] of the step as [runs, heads, longest, size]."""
        if self._tokens is None:
            mine = packed[:, self.begin : self.stop]
        else:
            mine = packed.index_select(1, self._tokens.to(packed.device))
        return mine.unflatten(1, (len(self.runs), self.longest)).transpose(0, 1)

    def unpadded(self, answer: Any) -> Any:
        """[runs, heads, longest, size] as [tokens, heads, size]."""
        flat = answer.transpose(1, 2).flatten(0, 1)
        return flat if self._tokens is None else flat.index_select(0, self._kept.to(flat.device))

    def write(self, shelf: Any, new: Any) -> None:
        shelf[:, :, : self.longest].index_copy_(0, self._rows.to(shelf.device), new)


class Kernel(Protocol):
    """Attention of rows that decode, each over its own length: `decode_kernel`."""

    def takes(self, query: Any, keys: Any, values: Any) -> bool: ...

    def attend(
        self, query: Any, keys: Any, values: Any, rows: Any, positions: Any, scale: float | None, window: int | None
    ) -> Any: ...


@dataclass(slots=True)
class Work:
    """What attention does in one step."""

    decoding: list[Decoding]
    together: list[Together] = field(default_factory=list)
    alone: list[Prefill] = field(default_factory=list)

    @classmethod
    def of(cls, layout: Layout, device: Any) -> Work:
        return cls(
            [Decoding.of(group, device) for group in layout.groups],
            [Together(runs, device) for runs in layout.batches],
            layout.alone,
        )


class ShelfAttention:
    """The attention function the model calls during our steps; `work` is set for each step."""

    def __init__(self, eager: bool, kernel: Kernel | None = None, why_library: str | None = None) -> None:
        self.work: Work | None = None
        self.kernel = kernel  # for rows that decode; none: the library's, with a mask
        self.why_library = why_library
        self._attend = _eager if eager else scaled_dot_product_attention

    def drop_kernel(self, reason: str) -> None:
        self.kernel, self.why_library = None, reason

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
        if self.work is None or attention_mask is not None or kwargs.get("softcap") is not None or "s_aux" in kwargs:
            raise NotImplementedError("this model's attention has more to it than keys, values and a window")
        layer, work, states = module.layer_idx, self.work, (query, key, value)
        if len(work.decoding) == 1 and not work.together and not work.alone:
            return self._decode(layer, work.decoding[0], *states, scaling, sliding_window)[None], None
        out = value.new_empty(1, query.shape[2], query.shape[1], value.shape[3])
        for group in work.decoding:
            place = slice(group.begin, group.begin + len(group.rows))
            out[0, place] = self._decode(layer, group, *states, scaling, sliding_window)
        alone = list(work.alone)
        for batch in work.together:
            if sliding_window is not None and batch.longest > sliding_window:
                alone += batch.runs
            else:
                out[0, batch.begin : batch.stop] = self._prefill_together(layer, batch, *states, scaling)
        for run in alone:
            out[0, run.begin : run.begin + run.count] = self._prefill(layer, run, *states, scaling, sliding_window)
        return out, None

    def _decode(
        self, layer: int, group: Decoding, query: Any, key: Any, value: Any, scaling: float | None, window: int | None
    ) -> Any:
        """[rows, heads, size]"""
        place = slice(group.begin, group.begin + len(group.rows))
        keys, values = group.shelf.tensors(layer, key, value)
        group.write(keys, key[0, :, place].transpose(0, 1))
        group.write(values, value[0, :, place].transpose(0, 1))
        if self.kernel is not None and not self.kernel.takes(query, keys, values):  # seen at load
            self.drop_kernel(f"it does not take heads of {keys.shape[3]} in {str(keys.dtype).removeprefix('torch.')}")
        if self.kernel is not None:
            rows, positions = group.rows.to(keys.device), group.positions.to(keys.device)
            return self.kernel.attend(
                query[0, :, place].transpose(0, 1), keys, values, rows, positions, scaling, window
            )
        # Query heads that share a key head stand side by side as if they were positions: no copy of the keys for each.
        count, heads = len(group.rows), keys.shape[1]
        asked = query[0, :, place].transpose(0, 1).reshape(count, heads, -1, query.shape[3])
        which = slice(0, group.height) if group.whole else group.rows.to(keys.device)
        seen_keys, seen_values = keys[which, :, : group.reach], values[which, :, : group.reach]
        answer = self._attend(asked, seen_keys, seen_values, attn_mask=group.mask(query, window), scale=scaling)
        return answer.reshape(count, -1, value.shape[3])

    def _prefill_together(
        self, layer: int, batch: Together, query: Any, key: Any, value: Any, scaling: float | None
    ) -> Any:
        """[tokens, heads, size]"""
        keys, values = batch.shelf.tensors(layer, key, value)
        asked, new_keys, new_values = batch.batch(query[0]), batch.batch(key[0]), batch.batch(value[0])
        batch.write(keys, new_keys)
        batch.write(values, new_values)
        groups = query.shape[1] // key.shape[1]
        seen_keys, seen_values = (new.repeat_interleave(groups, dim=1) for new in (new_keys, new_values))
        return batch.unpadded(self._attend(asked, seen_keys, seen_values, is_causal=True, scale=scaling))

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
