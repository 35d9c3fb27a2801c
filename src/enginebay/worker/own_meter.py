"""The meter of what one worker's engine computes on."""

from __future__ import annotations

import os

from enginebay.contract import Engine, HasMeter
from enginebay.meters.own_gpus import family_of, open_own_gpus, uses_cuda
from enginebay.meters.rapl import open_rapl
from enginebay.meters.sample import Absent, Meter

# By these names engines tell how many tokens one step takes at most.
_STEP_TOKENS = ("max_num_batched_tokens", "batching.max_tokens_per_batch", "batch_size")


def find_meter(engine: Engine) -> Meter | Absent:
    """The engine's own, or that of its GPUs, or of the processors when it uses none; or why there is none."""
    own = engine.meter() if isinstance(engine, HasMeter) else None
    if own is not None:
        return own
    device = str(engine.facts().effective.get("device", ""))
    if device.startswith("cuda") or (not device.startswith("cpu") and uses_cuda(family_of(os.getpid()))):
        shown, order = os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("CUDA_DEVICE_ORDER")
        return open_own_gpus(lambda: family_of(os.getpid()), shown, order=order)
    meter, absent = open_rapl()
    return absent[0] if meter is None else meter


def step_tokens(engine: Engine) -> int | None:
    """How many tokens one step takes at most, prompts among them; None where the engine does not tell."""
    effective = engine.facts().effective
    found = (effective.get(name) for name in _STEP_TOKENS)
    return next((value for value in found if isinstance(value, int) and value > 0), None)
