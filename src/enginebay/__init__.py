"""Run any LLM on any engine behind one API. Exports public names only and imports them on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = ["AsyncStack", "EnginebayError", "Sampling", "Stack", "__version__"]

_PUBLIC_MODULES = {
    "AsyncStack": "enginebay.stack",
    "Stack": "enginebay.stack",
    "EnginebayError": "enginebay.errors",
    "Sampling": "enginebay.contract",
}

if TYPE_CHECKING:
    from enginebay.contract import Sampling
    from enginebay.errors import EnginebayError
    from enginebay.stack import AsyncStack, Stack


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC_MODULES:
        raise AttributeError(f"module 'enginebay' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_PUBLIC_MODULES[name]), name)
