"""Opens the energy meter for the devices that a worker's engine uses."""

from __future__ import annotations

import os

from enginebay.contract import Engine, HasMeter
from enginebay.meters.devices.engine_gpu_meter import open_engine_gpu_meter, uses_cuda
from enginebay.meters.devices.proc_files import list_process_tree
from enginebay.meters.devices.rapl_meter import open_rapl
from enginebay.meters.sample import Absent, Meter
from enginebay.util.gpus.gpu_discovery import PLACED_GPUS, VISIBLE_DEVICES


def open_engine_meter(engine: Engine) -> Meter | Absent:
    """Return the engine's own meter, else that of its GPUs, else that of the CPU; or why there is none."""
    own = engine.meter() if isinstance(engine, HasMeter) else None
    if own is not None:
        return own
    device = str(engine.facts().effective.get("device", ""))
    if device.startswith("cuda") or (not device.startswith("cpu") and uses_cuda(list_process_tree(os.getpid()))):
        placed, order = os.environ.get(PLACED_GPUS), os.environ.get("CUDA_DEVICE_ORDER")
        visible = placed or os.environ.get(VISIBLE_DEVICES)
        return open_engine_gpu_meter(lambda: list_process_tree(os.getpid()), visible, order=order, placed=bool(placed))
    meter, absent = open_rapl()
    return absent[0] if meter is None else meter
