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

from enginebay.engines.transformers.continuous.kv_cache import CacheBucket
from enginebay.engines.transformers.continuous.step_layout import DecodeGroup, PrefillRun, StepLayout

ATTENTION_NAME = "enginebay"
_LENGTH_MULTIPLE = 64  # attention lengths are multiples of this, so that few shapes occur


@dataclass(slots=True)
class DecodeBatch:
    """One token for each of some rows of a shelf. `rows` and `positions` say where the tokens go in the shelf."""

    bucket: CacheBucket
    rows: Any
    positions: Any
    token_offset: int  # of its tokens in the step
    attended_length: int  # cached positions that attention reads
    bucket_rows: int  # rows of the shelf that attention reads
    is_contiguous: bool  # the shelf's first rows take part, in order
    masks: dict[tuple[Any, int | None, Any], Any] = field(default_factory=dict)
    flat_indices: dict[tuple[Any, int, int], Any] = field(default_factory=dict)

    @classmethod
    def from_group(cls, group: DecodeGroup, device: Any) -> DecodeBatch:
        reach = min(group.bucket.capacity, math.ceil(group.max_length / _LENGTH_MULTIPLE) * _LENGTH_MULTIPLE)
        rows = torch.tensor(group.indices, device=device)
        positions = torch.tensor([segment.start for segment in group.segments], device=device)
        return cls(group.bucket, rows, positions, group.token_offset, reach, group.indices[-1] + 1, group.is_contiguous)

    def write(self, cache: Any, new: Any) -> None:
        """Put new keys or values [rows, heads, size] in place. One flat copy; the indices are the same for all layers."""
        height, heads, capacity, size = cache.shape
        key = (cache.device, heads, capacity)
        if key not in self.flat_indices:
            lines = self.rows.to(cache.device)[:, None] * heads + torch.arange(heads, device=cache.device)
            self.flat_indices[key] = (lines * capacity + self.positions.to(cache.device)[:, None]).flatten()
        cache.view(height * heads * capacity, size).index_copy_(0, self.flat_indices[key], new.reshape(-1, size))

    def build_mask(self, like: Any, window: int | None) -> Any:
        """Additive mask [rows, 1, 1, reach]; the same for all layers with this window."""
        key = (like.device, window, like.dtype)
        if key not in self.masks:
            places = torch.arange(self.attended_length, device=like.device)
            last = self.positions.to(like.device)[:, None]
            seen = places <= last
            if window is not None:
                seen &= places > last - window
            mask = torch.zeros(seen.shape, dtype=like.dtype, device=like.device)
            mask.masked_fill_(~seen, torch.finfo(like.dtype).min)
            self.masks[key] = mask[:, None, None, :]
        return self.masks[key]


class PrefillBatch:
    """Beginnings of several prompts on one shelf as one batch [runs, heads, longest, size], the shorter ones padded.

    A padding token repeats its run's last: it comes after all that is looked at, and where it is written nobody looks
    before the row's own next token is there.
    """

    def __init__(self, prefills: Sequence[PrefillRun], device: Any) -> None:
        self.bucket = prefills[0].bucket
        self.prefills = prefills
        self.max_count = max(run.count for run in prefills)
        self.token_offset, self.token_end = prefills[0].token_offset, prefills[-1].token_offset + prefills[-1].count
        self._rows = torch.tensor([run.row for run in prefills], device=device)
        self._padded_indices: Any = None  # of the step, for each place of the batch; none when there is no padding
        if any(run.count < self.max_count for run in prefills):
            tokens = [run.token_offset + min(i, run.count - 1) for run in prefills for i in range(self.max_count)]
            kept = [at * self.max_count + i for at, run in enumerate(prefills) for i in range(run.count)]
            self._padded_indices, self._unpadded_indices = (
                torch.tensor(tokens, device=device),
                torch.tensor(kept, device=device),
            )

    def to_padded(self, packed: Any) -> Any:
        """[heads, tokens, size] of the step as [runs, heads, longest, size]."""
        if self._padded_indices is None:
            mine = packed[:, self.token_offset : self.token_end]
        else:
            mine = packed.index_select(1, self._padded_indices.to(packed.device))
        return mine.unflatten(1, (len(self.prefills), self.max_count)).transpose(0, 1)

    def to_packed(self, padded: Any) -> Any:
        """[runs, heads, longest, size] as [tokens, heads, size]."""
        flat = padded.transpose(1, 2).flatten(0, 1)
        return flat if self._padded_indices is None else flat.index_select(0, self._unpadded_indices.to(flat.device))

    def write(self, cache: Any, new: Any) -> None:
        cache[:, :, : self.max_count].index_copy_(0, self._rows.to(cache.device), new)


class DecodeKernel(Protocol):
    """Attention of rows that decode, each over its own length: `decode_kernel`."""

    def supports(self, query: Any, keys: Any, values: Any) -> bool: ...

    def attend(
        self, query: Any, keys: Any, values: Any, rows: Any, positions: Any, scale: float | None, window: int | None
    ) -> Any: ...


@dataclass(slots=True)
class AttentionMetadata:
    """What attention does in one step."""

    decode_batches: list[DecodeBatch]
    prefill_batches: list[PrefillBatch] = field(default_factory=list)
    single_prefills: list[PrefillRun] = field(default_factory=list)

    @classmethod
    def from_layout(cls, layout: StepLayout, device: Any) -> AttentionMetadata:
        return cls(
            [DecodeBatch.from_group(group, device) for group in layout.decode_groups],
            [PrefillBatch(runs, device) for runs in layout.prefill_batches],
            layout.single_prefills,
        )


class BucketedAttention:
    """The attention function the model calls during our steps; `work` is set for each step."""

    def __init__(self, eager: bool, kernel: DecodeKernel | None = None, fallback_reason: str | None = None) -> None:
        self.metadata: AttentionMetadata | None = None
        self.kernel = kernel  # for rows that decode; none: the library's, with a mask
        self.fallback_reason = fallback_reason
        self._attend = _attend_eagerly if eager else scaled_dot_product_attention

    def disable_kernel(self, reason: str) -> None:
        self.kernel, self.fallback_reason = None, reason

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
        if (
            self.metadata is None
            or attention_mask is not None
            or kwargs.get("softcap") is not None
            or "s_aux" in kwargs
        ):
            raise NotImplementedError("this model's attention has more to it than keys, values and a window")
        layer, work, states = module.layer_idx, self.metadata, (query, key, value)
        if len(work.decode_batches) == 1 and not work.prefill_batches and not work.single_prefills:
            return self._decode(layer, work.decode_batches[0], *states, scaling, sliding_window)[None], None
        out = value.new_empty(1, query.shape[2], query.shape[1], value.shape[3])
        for group in work.decode_batches:
            place = slice(group.token_offset, group.token_offset + len(group.rows))
            out[0, place] = self._decode(layer, group, *states, scaling, sliding_window)
        alone = list(work.single_prefills)
        for batch in work.prefill_batches:
            if sliding_window is not None and batch.max_count > sliding_window:
                alone += batch.prefills
            else:
                out[0, batch.token_offset : batch.token_end] = self._prefill_batch(layer, batch, *states, scaling)
        for run in alone:
            out[0, run.token_offset : run.token_offset + run.count] = self._prefill(
                layer, run, *states, scaling, sliding_window
            )
        return out, None

    def _decode(
        self,
        layer: int,
        group: DecodeBatch,
        query: Any,
        key: Any,
        value: Any,
        scaling: float | None,
        window: int | None,
    ) -> Any:
        """[rows, heads, size]"""
        place = slice(group.token_offset, group.token_offset + len(group.rows))
        keys, values = group.bucket.get_tensors(layer, key, value)
        group.write(keys, key[0, :, place].transpose(0, 1))
        group.write(values, value[0, :, place].transpose(0, 1))
        if self.kernel is not None and not self.kernel.supports(query, keys, values):  # seen at load
            self.disable_kernel(
                f"it does not take heads of {keys.shape[3]} in {str(keys.dtype).removeprefix('torch.')}"
            )
        if self.kernel is not None:
            rows, positions = group.rows.to(keys.device), group.positions.to(keys.device)
            return self.kernel.attend(
                query[0, :, place].transpose(0, 1), keys, values, rows, positions, scaling, window
            )
        # Query heads that share a key head stand side by side as if they were positions: no copy of the keys for each.
        count, heads = len(group.rows), keys.shape[1]
        asked = query[0, :, place].transpose(0, 1).reshape(count, heads, -1, query.shape[3])
        which = slice(0, group.bucket_rows) if group.is_contiguous else group.rows.to(keys.device)
        seen_keys, seen_values = keys[which, :, : group.attended_length], values[which, :, : group.attended_length]
        answer = self._attend(asked, seen_keys, seen_values, attn_mask=group.build_mask(query, window), scale=scaling)
        return answer.reshape(count, -1, value.shape[3])

    def _prefill_batch(
        self, layer: int, batch: PrefillBatch, query: Any, key: Any, value: Any, scaling: float | None
    ) -> Any:
        """[tokens, heads, size]"""
        keys, values = batch.bucket.get_tensors(layer, key, value)
        asked, new_keys, new_values = batch.to_padded(query[0]), batch.to_padded(key[0]), batch.to_padded(value[0])
        batch.write(keys, new_keys)
        batch.write(values, new_values)
        groups = query.shape[1] // key.shape[1]
        seen_keys, seen_values = (new.repeat_interleave(groups, dim=1) for new in (new_keys, new_values))
        return batch.to_packed(self._attend(asked, seen_keys, seen_values, is_causal=True, scale=scaling))

    def _prefill(
        self, layer: int, run: PrefillRun, query: Any, key: Any, value: Any, scaling: float | None, window: int | None
    ) -> Any:
        """[tokens, heads, size]"""
        place, stop = slice(run.token_offset, run.token_offset + run.count), run.start + run.count
        keys, values = run.bucket.get_tensors(layer, key, value)
        keys[run.row, :, run.start : stop] = key[0, :, place]
        values[run.row, :, run.start : stop] = value[0, :, place]
        groups = query.shape[1] // key.shape[1]
        seen_keys = keys[run.row : run.row + 1, :, :stop].repeat_interleave(groups, dim=1)
        seen_values = values[run.row : run.row + 1, :, :stop].repeat_interleave(groups, dim=1)
        plain = run.start == 0 and (window is None or stop <= window)
        mask = None if plain else _build_causal_mask(run.start, stop, window, query)
        answer = self._attend(
            query[:, :, place], seen_keys, seen_values, attn_mask=mask, is_causal=plain, scale=scaling
        )
        return answer[0].transpose(0, 1)


def _build_causal_mask(start: int, stop: int, window: int | None, like: Any) -> Any:
    """Additive mask of positions start..stop over the cached positions up to each, at most a window back."""
    mine = torch.arange(start, stop, device=like.device)[:, None]
    theirs = torch.arange(stop, device=like.device)
    seen = theirs <= mine
    if window is not None:
        seen &= theirs > mine - window
    mask = torch.zeros(seen.shape, dtype=like.dtype, device=like.device)
    return mask.masked_fill_(~seen, torch.finfo(like.dtype).min)


def _attend_eagerly(
    query: Any, keys: Any, values: Any, attn_mask: Any = None, is_causal: bool = False, scale: float | None = None
) -> Any:
    """Attention written out, for `attn_implementation: eager`."""
    weights = query @ keys.transpose(2, 3) * (scale if scale is not None else query.shape[-1] ** -0.5)
    if is_causal:
        attn_mask = _build_causal_mask(0, query.shape[2], None, query)
    if attn_mask is not None:
        weights = weights + attn_mask
    return weights.softmax(dim=-1, dtype=torch.float32).to(query.dtype) @ values
