"""A model's weights off its device and back, storage by storage.

Tensors stay the objects they are, with their views and ties; only the memory behind them goes and comes, so nothing
that holds one of them has to be told.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

_CHUNK_BYTES = 16 * 1024**2  # pinned memory is handed out in powers of two: small pieces waste little


def find_sleep_levels(
    model: Any, single_process: bool, quantized: bool, compiled: bool, draft: bool
) -> tuple[int, ...]:
    """Level 1 for dense weights on one CUDA device. Compiled code may know addresses, and a draft model has its own."""
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
        self._offloaded: list[tuple[Any, list[Any]]] = []  # storage, its bytes in pieces

    def offload(self) -> None:
        """Free the device. When main memory does not suffice, nothing has changed."""
        away = [(storage, _copy_to_host(storage)) for storage in self._find_storages()]
        _synchronize()
        for storage, _ in away:
            storage.resize_(0)
        self._offloaded = away
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def restore(self) -> None:
        for storage, pieces in self._offloaded:
            storage.resize_(sum(piece.numel() for piece in pieces))
            at = 0
            whole = _view_as_bytes(storage)
            for piece in pieces:
                whole[at : at + piece.numel()].copy_(piece, non_blocking=True)
                at += piece.numel()
        _synchronize()
        self._offloaded = []

    def _find_storages(self) -> Iterable[Any]:
        """Each once, however many tensors share it."""
        found: dict[int, Any] = {}
        for tensor in (*self._model.parameters(), *self._model.buffers()):
            storage = tensor.untyped_storage()
            if tensor.device.type == self._device_type and storage.nbytes():
                found[storage.data_ptr()] = storage
        return found.values()


def _copy_to_host(storage: Any) -> list[Any]:
    """On the way when it returns: `_synchronize` before the storage goes."""
    pieces = []
    for part in _view_as_bytes(storage).split(_CHUNK_BYTES):
        piece = _allocate_host_memory(part.numel())
        pieces.append(piece.copy_(part, non_blocking=True))
    return pieces


def _allocate_host_memory(size: int) -> Any:
    """Pinned where possible, which a device copies from several times faster."""
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
