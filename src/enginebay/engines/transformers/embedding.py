"""Text embeddings: the last hidden states, pooled as the model's configuration specifies."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch

from enginebay.contract import Embedding
from enginebay.errors import ContextOverflow, InvalidRequest


class Embedder:
    """Embeds batches of token ids. Thread-safe; one call runs at a time."""

    def __init__(
        self,
        model: Any,
        device: Any,
        pad_token_id: int,
        context_length: int,
        pooling: str,
        normalised: bool,
        batch_size: int,
    ) -> None:
        self._model = model
        self._device = device
        self._pad_token_id = pad_token_id
        self._context_length = context_length
        self._pooling = pooling
        self._normalised = normalised
        self._batch_size = batch_size
        self._lock = threading.Lock()

    def embed(self, inputs: Sequence[Sequence[int]]) -> Embedding:
        for ids in inputs:
            if not ids:
                raise InvalidRequest("an input to embed is empty", "send at least one token", param="input")
            if len(ids) > self._context_length:
                raise ContextOverflow(
                    f"an input ({len(ids)} tokens) exceeds the model's context length of {self._context_length} tokens",
                    "split the text",
                )
        # Sort by length to keep padding small.
        order = sorted(range(len(inputs)), key=lambda i: len(inputs[i]))
        vectors: dict[int, tuple[float, ...]] = {}
        with self._lock:
            for start in range(0, len(order), self._batch_size):
                batch = order[start : start + self._batch_size]
                rows = self._embed_batch([inputs[i] for i in batch])
                vectors |= {i: tuple(row) for i, row in zip(batch, rows, strict=True)}
        return Embedding(tuple(vectors[i] for i in range(len(inputs))), sum(len(ids) for ids in inputs))

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def _embed_batch(self, inputs: Sequence[Sequence[int]]) -> list[list[float]]:
        width = max(len(ids) for ids in inputs)
        ids = torch.full((len(inputs), width), self._pad_token_id, dtype=torch.long)
        mask = torch.zeros((len(inputs), width), dtype=torch.long)
        for i, tokens in enumerate(inputs):
            ids[i, : len(tokens)] = torch.tensor(list(tokens))
            mask[i, : len(tokens)] = 1
        ids, mask = ids.to(self._device), mask.to(self._device)
        states = self._model(input_ids=ids, attention_mask=mask).last_hidden_state.float()
        pooled = pool(states, mask, self._pooling)
        if self._normalised:
            pooled = torch.nn.functional.normalize(pooled, dim=-1)
        vectors: list[list[float]] = pooled.tolist()
        return vectors


def pool(states: Any, mask: Any, pooling: str) -> Any:
    """Pool [texts, tokens, size] to [texts, size], ignoring padding."""
    if pooling == "cls":
        return states[:, 0]
    if pooling == "lasttoken":
        return states[torch.arange(states.shape[0]), mask.sum(dim=1) - 1]
    weights = mask[:, :, None].to(states.dtype)
    if pooling == "max":
        return states.masked_fill(weights == 0, -torch.inf).amax(dim=1)
    return (states * weights).sum(dim=1) / weights.sum(dim=1)
