"""Packages that only the lab needs."""

from __future__ import annotations

from importlib.util import find_spec

from enginebay.errors import EnginebayError

LAB_PACKAGES = ("numpy", "scipy", "pyarrow")


def find_missing_packages() -> list[str]:
    return [name for name in LAB_PACKAGES if find_spec(name) is None]


def require_lab() -> None:
    """Raise `EnginebayError` with what to install."""
    missing = find_missing_packages()
    if missing:
        raise EnginebayError(f"the lab needs {', '.join(missing)}", "run: pip install 'enginebay[lab]'")
