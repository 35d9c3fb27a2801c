"""Access to NVIDIA's driver through its Python package, nvidia-ml-py."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Any

# An engine's environment lacks the package, which is one file: its worker loads the server's copy.
FILE_VARIABLE = "ENGINEBAY_NVML_FILE"
_BORROWED = "enginebay_pynvml"


class NvmlMissing(Exception):
    """NVML is unusable: no NVIDIA driver, one that does not respond, or no package nvidia-ml-py."""


def open_nvml() -> Any:
    """Return the module `pynvml`, initialized. The caller shuts it down. Raises `NvmlMissing`."""
    pynvml = _import_pynvml()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise NvmlMissing(f"NVML cannot be initialized: {error}") from None
    return pynvml


def close_nvml(pynvml: Any) -> None:
    try:
        pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        pass  # the driver is gone, so nothing is left to release


def find_nvml_file() -> str:
    spec = importlib.util.find_spec("pynvml")
    return spec.origin or "" if spec is not None else ""


def _import_pynvml() -> Any:
    try:
        import pynvml
    except ImportError:
        return sys.modules.get(_BORROWED) or _borrow_pynvml()
    return pynvml


def _borrow_pynvml() -> Any:
    """Import the server's copy, under another name: the engine's own libraries must not find it."""
    file = os.environ.get(FILE_VARIABLE)
    spec = importlib.util.spec_from_file_location(_BORROWED, file) if file else None
    if spec is None or spec.loader is None:
        raise NvmlMissing("the Python package nvidia-ml-py is not installed")
    sys.modules[_BORROWED] = module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[_BORROWED]
        raise
    return module
