"""Attention over the packed tokens of a step: each row attends to its own row of a KV cache bucket.

A step is one packed sequence, [1, tokens]: first one token per decoding row, bucket by bucket, then prompt tokens.
All layers but attention work per token, so packing needs no padding.
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
_LENGTH_MULTIPLE = 64  # attended lengths are multiples of this, to limit the number of shapes


@dataclass(slots=True)
class DecodeBatch:
    """One token for each of some rows of a bucket. `rows` and `positions` locate the tokens in the bucket."""

    bucket: CacheBucket
    rows: Any
    positions: Any
    token_offset: int  # of its first token in the step
    attended_length: int  # cached positions that attention reads
    bucket_rows: int  # rows of the bucket that attention reads
    is_contiguous: bool  # the batch is the first rows of the bucket, in order
    masks: dict[tuple[Any, int | None, Any], Any] = field(default_factory=dict)
    flat_indices: dict[tuple[Any, int, int], Any] = field(default_factory=dict)

    @classmethod
    def from_group(cls, group: DecodeGroup, device: Any) -> DecodeBatch:
        length = min(group.bucket.capacity, math.ceil(group.max_length / _LENGTH_MULTIPLE) * _LENGTH_MULTIPLE)
        rows = torch.tensor(group.indices, device=device)
        positions = torch.tensor([segment.start for segment in group.segments], device=device)
        return cls(
            group.bucket, rows, positions, group.token_offset, length, group.indices[-1] + 1, group.is_contiguous
        )

    def write(self, cache: Any, new: Any) -> None:
        """Write new keys or values [rows, heads, size] to the cache. One flat copy; all layers share the indices."""
        allocated_rows, heads, capacity, size = cache.shape
        key = (cache.device, heads, capacity)
        if key not in self.flat_indices:
            row_heads = self.rows.to(cache.device)[:, None] * heads + torch.arange(heads, device=cache.device)
            self.flat_indices[key] = (row_heads * capacity + self.positions.to(cache.device)[:, None]).flatten()
        cache.view(allocated_rows * heads * capacity, size).index_copy_(
            0, self.flat_indices[key], new.reshape(-1, size)
        )

    def build_mask(self, like: Any, window: int | None) -> Any:
        """Return the additive mask [rows, 1, 1, attended length]; all layers with this window share it."""
        key = (like.device, window, like.dtype)
        if key not in self.masks:
            positions = torch.arange(self.attended_length, device=like.device)
            last = self.positions.to(like.device)[:, None]
            visible = positions <= last
            if window is not None:
                visible &= positions > last - window
            mask = torch.zeros(visible.shape, dtype=like.dtype, device=like.device)
            mask.masked_fill_(~visible, torch.finfo(like.dtype).min)
            self.masks[key] = mask[:, None, None, :]
        return self.masks[key]


class PrefillBatch:
    """The starts of several prompts in one bucket as one padded batch [runs, heads, longest, size].

    A padding token repeats the last token of its run. No token attends to it, and the row's next token overwrites its
    cache position before it is read.
    """

    def __init__(self, prefills: Sequence[PrefillRun], device: Any) -> None:
        self.bucket = prefills[0].bucket
        self.prefills = prefills
        self.max_count = max(run.count for run in prefills)
        self.token_offset, self.token_end = prefills[0].token_offset, prefills[-1].token_offset + prefills[-1].count
        self._rows = torch.tensor([run.row for run in prefills], device=device)
        self._padded_indices: Any = None  # token of the step for each slot of the batch; None without padding
        if any(run.count < self.max_count for run in prefills):
            tokens = [run.token_offset + min(i, run.count - 1) for run in prefills for i in range(self.max_count)]
            unpadded = [index * self.max_count + i for index, run in enumerate(prefills) for i in range(run.count)]
            self._padded_indices, self._unpadded_indices = (
                torch.tensor(tokens, device=device),
                torch.tensor(unpadded, device=device),
            )

    def to_padded(self, packed: Any) -> Any:
        """Return [heads, tokens, size] of the step as [runs, heads, longest, size]."""
        if self._padded_indices is None:
            selected = packed[:, self.token_offset : self.token_end]
        else:
            selected = packed.index_select(1, self._padded_indices.to(packed.device))
        return selected.unflatten(1, (len(self.prefills), self.max_count)).transpose(0, 1)

    def to_packed(self, padded: Any) -> Any:
        """Return [runs, heads, longest, size] as [tokens, heads, size]."""
        flat = padded.transpose(1, 2).flatten(0, 1)
        return flat if self._padded_indices is None else flat.index_select(0, self._unpadded_indices.to(flat.device))

    def write(self, cache: Any, new: Any) -> None:
        cache[:, :, : self.max_count].index_copy_(0, self._rows.to(cache.device), new)


class DecodeKernel(Protocol):
    """Attention of decoding rows, each over its own length. Implemented by the module `decode_kernel`."""

    def supports(self, query: Any, keys: Any, values: Any) -> bool: ...

    def attend(
        self, query: Any, keys: Any, values: Any, rows: Any, positions: Any, scale: float | None, window: int | None
    ) -> Any: ...


@dataclass(slots=True)
class AttentionMetadata:
    """The batches that attention processes in one step."""

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
    """The attention function that the model calls during a step. Set `metadata` for each step."""

    def __init__(self, eager: bool, kernel: DecodeKernel | None = None, fallback_reason: str | None = None) -> None:
        self.metadata: AttentionMetadata | None = None
        self.kernel = kernel  # for decoding rows; None: the library's attention with a mask
        self.fallback_reason = fallback_reason
        self._attend = _attend_eagerly if eager else scaled_dot_product_attention

    def disable_kernel(self, reason: str) -> None:
        self.kernel, self.fallback_reason = None, reason

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # its shapes change every step
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
        """Attend. query, key and value: [1, heads, tokens, head size]; returns [1, tokens, heads, head size]."""
        if (
            self.metadata is None
            or attention_mask is not None
            or kwargs.get("softcap") is not None
            or "s_aux" in kwargs
        ):
            raise NotImplementedError("this model's attention uses more than keys, values and a sliding window")
        layer, metadata, states = module.layer_idx, self.metadata, (query, key, value)
        if len(metadata.decode_batches) == 1 and not metadata.prefill_batches and not metadata.single_prefills:
            return self._decode(layer, metadata.decode_batches[0], *states, scaling, sliding_window)[None], None
        out = value.new_empty(1, query.shape[2], query.shape[1], value.shape[3])
        for decode_batch in metadata.decode_batches:
            tokens = slice(decode_batch.token_offset, decode_batch.token_offset + len(decode_batch.rows))
            out[0, tokens] = self._decode(layer, decode_batch, *states, scaling, sliding_window)
        single_prefills = list(metadata.single_prefills)
        for batch in metadata.prefill_batches:
            if sliding_window is not None and batch.max_count > sliding_window:
                single_prefills += batch.prefills
            else:
                out[0, batch.token_offset : batch.token_end] = self._prefill_batch(layer, batch, *states, scaling)
        for run in single_prefills:
            out[0, run.token_offset : run.token_offset + run.count] = self._prefill(
                layer, run, *states, scaling, sliding_window
            )
        return out, None

    def _decode(
        self,
        layer: int,
        batch: DecodeBatch,
        query: Any,
        key: Any,
        value: Any,
        scaling: float | None,
        window: int | None,
    ) -> Any:
        """Return [rows, heads, size]."""
        tokens = slice(batch.token_offset, batch.token_offset + len(batch.rows))
        keys, values = batch.bucket.get_tensors(layer, key, value)
        batch.write(keys, key[0, :, tokens].transpose(0, 1))
        batch.write(values, value[0, :, tokens].transpose(0, 1))
        if self.kernel is not None and not self.kernel.supports(query, keys, values):  # happens during the load
            self.disable_kernel(
                f"it does not support head size {keys.shape[3]} in {str(keys.dtype).removeprefix('torch.')}"
            )
        if self.kernel is not None:
            rows, positions = batch.rows.to(keys.device), batch.positions.to(keys.device)
            return self.kernel.attend(
                query[0, :, tokens].transpose(0, 1), keys, values, rows, positions, scaling, window
            )
        # Treat the query heads that share a key head as positions: this avoids a copy of the keys for each of them.
        count, heads = len(batch.rows), keys.shape[1]
        queries = query[0, :, tokens].transpose(0, 1).reshape(count, heads, -1, query.shape[3])
        rows = slice(0, batch.bucket_rows) if batch.is_contiguous else batch.rows.to(keys.device)
        row_keys, row_values = keys[rows, :, : batch.attended_length], values[rows, :, : batch.attended_length]
        mask = batch.build_mask(query, window)
        output = self._attend(queries, row_keys, row_values, attn_mask=mask, scale=scaling)
        return output.reshape(count, -1, value.shape[3])

    def _prefill_batch(
        self, layer: int, batch: PrefillBatch, query: Any, key: Any, value: Any, scaling: float | None
    ) -> Any:
        """Return [tokens, heads, size]."""
        keys, values = batch.bucket.get_tensors(layer, key, value)
        queries, new_keys, new_values = batch.to_padded(query[0]), batch.to_padded(key[0]), batch.to_padded(value[0])
        batch.write(keys, new_keys)
        batch.write(values, new_values)
        groups = query.shape[1] // key.shape[1]
        all_keys, all_values = (new.repeat_interleave(groups, dim=1) for new in (new_keys, new_values))
        return batch.to_packed(self._attend(queries, all_keys, all_values, is_causal=True, scale=scaling))

    def _prefill(
        self, layer: int, run: PrefillRun, query: Any, key: Any, value: Any, scaling: float | None, window: int | None
    ) -> Any:
        """Return [tokens, heads, size]."""
        tokens, stop = slice(run.token_offset, run.token_offset + run.count), run.start + run.count
        keys, values = run.bucket.get_tensors(layer, key, value)
        keys[run.row, :, run.start : stop] = key[0, :, tokens]
        values[run.row, :, run.start : stop] = value[0, :, tokens]
        groups = query.shape[1] // key.shape[1]
        row_keys = keys[run.row : run.row + 1, :, :stop].repeat_interleave(groups, dim=1)
        row_values = values[run.row : run.row + 1, :, :stop].repeat_interleave(groups, dim=1)
        is_causal = run.start == 0 and (window is None or stop <= window)
        mask = None if is_causal else _build_causal_mask(run.start, stop, window, query)
        output = self._attend(
            query[:, :, tokens], row_keys, row_values, attn_mask=mask, is_causal=is_causal, scale=scaling
        )
        return output[0].transpose(0, 1)


def _build_causal_mask(start: int, stop: int, window: int | None, like: Any) -> Any:
    """Return the additive mask of positions start..stop over all cached positions, limited to the sliding window."""
    queries = torch.arange(start, stop, device=like.device)[:, None]
    keys = torch.arange(stop, device=like.device)
    visible = keys <= queries
    if window is not None:
        visible &= keys > queries - window
    mask = torch.zeros(visible.shape, dtype=like.dtype, device=like.device)
    return mask.masked_fill_(~visible, torch.finfo(like.dtype).min)


def _attend_eagerly(
    query: Any, keys: Any, values: Any, attn_mask: Any = None, is_causal: bool = False, scale: float | None = None
) -> Any:
    """Compute attention step by step, for `attn_implementation: eager`."""
    weights = query @ keys.transpose(2, 3) * (scale if scale is not None else query.shape[-1] ** -0.5)
    if is_causal:
        attn_mask = _build_causal_mask(0, query.shape[2], None, query)
    if attn_mask is not None:
        weights = weights + attn_mask
    return weights.softmax(dim=-1, dtype=torch.float32).to(query.dtype) @ values
