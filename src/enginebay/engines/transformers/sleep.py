"""Offloads a model's weights to main memory and restores them, storage by storage.

Tensor objects, views and ties stay the same; only the memory behind them is freed and reallocated, so references to
them remain valid.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

_CHUNK_BYTES = 16 * 1024**2  # pinned memory is allocated in powers of two: small chunks waste little


def find_sleep_levels(
    model: Any, single_process: bool, quantized: bool, compiled: bool, draft: bool
) -> tuple[int, ...]:
    """Return level 1 for unquantized weights on one CUDA device, else none.

    Compiled code may hold addresses, and a draft model has its own weights.
    """
    if not single_process or quantized or compiled or draft:
        return ()
    tensors = [*model.parameters(), *model.buffers()]
    if len({str(tensor.device) for tensor in model.parameters()}) != 1:
        return ()
    on_device = [tensor for tensor in tensors if tensor.device.type == "cuda"]
    movable = bool(on_device) and all(tensor.untyped_storage().resizable() for tensor in on_device)
    return (1,) if movable else ()


class OffloadableWeights:
    """The weights of one model, on their device or in main memory."""

    def __init__(self, model: Any, device_type: str = "cuda") -> None:
        self._model = model
        self._device_type = device_type
        self._offloaded: list[tuple[Any, list[Any]]] = []  # storage, its bytes in chunks

    def offload(self) -> None:
        """Free the device memory. If main memory runs out, nothing changes."""
        offloaded = [(storage, _copy_to_host(storage)) for storage in self._find_storages()]
        _synchronize()
        for storage, _ in offloaded:
            storage.resize_(0)
        self._offloaded = offloaded
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def restore(self) -> None:
        for storage, chunks in self._offloaded:
            storage.resize_(sum(chunk.numel() for chunk in chunks))
            offset = 0
            device_bytes = _view_as_bytes(storage)
            for chunk in chunks:
                device_bytes[offset : offset + chunk.numel()].copy_(chunk, non_blocking=True)
                offset += chunk.numel()
        _synchronize()
        self._offloaded = []

    def _find_storages(self) -> Iterable[Any]:
        """Return each storage once, even if several tensors share it."""
        storages: dict[int, Any] = {}
        for tensor in (*self._model.parameters(), *self._model.buffers()):
            storage = tensor.untyped_storage()
            if tensor.device.type == self._device_type and storage.nbytes():
                storages[storage.data_ptr()] = storage
        return storages.values()


def _copy_to_host(storage: Any) -> list[Any]:
    """Start an asynchronous copy: call `_synchronize` before you free the storage."""
    chunks = []
    for part in _view_as_bytes(storage).split(_CHUNK_BYTES):
        chunk = _allocate_host_memory(part.numel())
        chunks.append(chunk.copy_(part, non_blocking=True))
    return chunks


def _allocate_host_memory(size: int) -> Any:
    """Return pinned memory if possible: copies from it are several times faster."""
    if torch.cuda.is_available():
        try:
            return torch.empty(size, dtype=torch.uint8, pin_memory=True)
        except RuntimeError:
            pass
    return torch.empty(size, dtype=torch.uint8)


def _view_as_bytes(storage: Any) -> Any:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage, 0, (storage.nbytes(),))


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
