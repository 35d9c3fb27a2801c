"""Several processes that hold parts of one model. Rank 0 decides; the others do the same work on their part."""

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
    """This process among those that torchrun or accelerate started; alone where neither did."""

    rank: int = 0
    world_size: int = 1

    @classmethod
    def from_environment(cls) -> RankInfo:
        return cls(int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")))


@dataclass(frozen=True, slots=True)
class Shutdown:
    """The last message: followers may go."""


@dataclass(frozen=True, slots=True)
class Resume:
    """Go on with generate(); `done` says which of its rows have ended."""

    done: list[bool]


class LeaderGone(EngineFailed):
    """Rank 0 ended without a word; so do its followers."""


class RankGroup:
    """How rank 0 tells the others what to do. Messages go over gloo, also where the model's own traffic is NCCL."""

    def __init__(self, rank_info: RankInfo) -> None:
        self.rank_info = rank_info
        self._group: Any = None
        if rank_info.world_size > 1:
            # Followers wait for the next message as long as nobody asks anything.
            self._group = torch.distributed.new_group(backend="gloo", timeout=_BROADCAST_TIMEOUT)

    @property
    def is_single_process(self) -> bool:
        return self.rank_info.world_size == 1

    @property
    def is_leader(self) -> bool:
        return self.rank_info.rank == 0

    def broadcast(self, message: object) -> None:
        """Rank 0: hand every follower the same message."""
        if not self.is_single_process:
            torch.distributed.broadcast_object_list([message], src=0, group=self._group)

    def receive(self) -> Any:
        """Followers: wait for the next message."""
        box: list[Any] = [None]
        try:
            torch.distributed.broadcast_object_list(box, src=0, group=self._group)
        except RuntimeError:  # gloo's word for a closed connection
            raise LeaderGone("rank 0 has ended") from None
        return box[0]

    def broadcast_tensor(self, tensor: Any) -> Any:
        """Rank 0's tensor, everywhere."""
        if self.is_single_process:
            return tensor
        copy = tensor.to("cpu").contiguous()
        torch.distributed.broadcast(copy, src=0, group=self._group)
        return copy.to(tensor.device)

    def close(self) -> None:
        if not self.is_single_process:
            torch.distributed.destroy_process_group()
