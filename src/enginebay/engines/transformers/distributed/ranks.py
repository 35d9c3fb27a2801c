"""The ranks of a sharded model. Rank 0 leads; the others run the same work on their shard."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch

from enginebay.errors import EngineFailed

_BROADCAST_TIMEOUT = timedelta(days=365)


@dataclass(frozen=True, slots=True)
class RankInfo:
    """The rank of this process under torchrun or accelerate; rank 0 of 1 without a launcher."""

    rank: int = 0
    world_size: int = 1

    @classmethod
    def from_environment(cls) -> RankInfo:
        return cls(int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")))


@dataclass(frozen=True, slots=True)
class Shutdown:
    """The last message: followers exit."""


@dataclass(frozen=True, slots=True)
class Resume:
    """Continue generate(); `done` flags its finished rows."""

    done: list[bool]


class LeaderGone(EngineFailed):
    """Rank 0 disappeared without `Shutdown`; its followers exit too."""


class RankGroup:
    """Broadcasts from rank 0 to its followers. Messages use gloo, even if the model uses NCCL."""

    def __init__(self, rank_info: RankInfo) -> None:
        self.rank_info = rank_info
        self._group: Any = None
        if rank_info.world_size > 1:
            # Followers wait for the next message for as long as the server is idle.
            self._group = torch.distributed.new_group(backend="gloo", timeout=_BROADCAST_TIMEOUT)

    @property
    def is_single_process(self) -> bool:
        return self.rank_info.world_size == 1

    def broadcast(self, message: object) -> None:
        """On rank 0: send a message to every follower."""
        if not self.is_single_process:
            torch.distributed.broadcast_object_list([message], src=0, group=self._group)

    def receive(self) -> Any:
        """On followers: wait for the next message."""
        box: list[Any] = [None]
        try:
            torch.distributed.broadcast_object_list(box, src=0, group=self._group)
        except RuntimeError:  # how gloo reports a closed connection
            raise LeaderGone("rank 0 has exited") from None
        return box[0]

    def broadcast_tensor(self, tensor: Any) -> Any:
        """Return rank 0's tensor on every rank."""
        if self.is_single_process:
            return tensor
        copy = tensor.to("cpu").contiguous()
        torch.distributed.broadcast(copy, src=0, group=self._group)
        return copy.to(tensor.device)

    def close(self) -> None:
        if not self.is_single_process:
            torch.distributed.destroy_process_group()
