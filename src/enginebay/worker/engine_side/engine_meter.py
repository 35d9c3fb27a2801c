"""The meter of what one worker's engine computes on."""

from __future__ import annotations

import os

from enginebay.contract import Engine, HasMeter
from enginebay.meters.devices.engine_gpu_meter import collect_process_tree, open_engine_gpu_meter, uses_cuda
from enginebay.meters.devices.rapl_meter import open_rapl
from enginebay.meters.sample import Absent, Meter

# By these names engines tell how many tokens one step takes at most.
_STEP_TOKEN_SETTINGS = ("max_num_batched_tokens", "batching.max_tokens_per_batch", "batch_size")


def open_engine_meter(engine: Engine) -> Meter | Absent:
    """The engine's own, or that of its GPUs, or of the processors when it uses none; or why there is none."""
    own = engine.meter() if isinstance(engine, HasMeter) else None
    if own is not None:
        return own
    device = str(engine.facts().effective.get("device", ""))
    if device.startswith("cuda") or (not device.startswith("cpu") and uses_cuda(collect_process_tree(os.getpid()))):
        shown, order = os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("CUDA_DEVICE_ORDER")
        return open_engine_gpu_meter(lambda: collect_process_tree(os.getpid()), shown, order=order)
    meter, absent = open_rapl()
    return absent[0] if meter is None else meter


def read_max_step_tokens(engine: Engine) -> int | None:
    """How many tokens one step takes at most, prompts among them; None where the engine does not tell."""
    effective = engine.facts().effective
    found = (effective.get(name) for name in _STEP_TOKEN_SETTINGS)
    return next((value for value in found if isinstance(value, int) and value > 0), None)
