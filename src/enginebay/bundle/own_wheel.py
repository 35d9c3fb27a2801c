"""Enginebay's own wheel, made of the installation that runs: so a bundle holds the very version that made it."""

from __future__ import annotations

from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import enginebay
from enginebay.bundle.wheels import make
from enginebay.errors import EnginebayError

_WHEEL = b"Wheel-Version: 1.0\nGenerator: enginebay\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
_KEPT = ("METADATA", "entry_points.txt", "licenses/LICENSE")


def own_wheel(into: Path) -> Path:
    """Needs no network, no source tree and no build tool, however Enginebay was installed."""
    try:
        found: Distribution = distribution("enginebay")
    except PackageNotFoundError:
        raise EnginebayError(
            "enginebay runs from a source tree that is not installed", "run: pip install -e ."
        ) from None
    info = f"enginebay-{found.version}.dist-info"
    content = {f"{info}/{name}": text.encode() for name in _KEPT if (text := found.read_text(name)) is not None}
    content[f"{info}/WHEEL"] = _WHEEL
    package = Path(enginebay.__file__).parent
    for path in package.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            content[f"enginebay/{path.relative_to(package).as_posix()}"] = path.read_bytes()
    into.mkdir(parents=True, exist_ok=True)
    made = into / f"enginebay-{found.version}-py3-none-any.whl"
    make(made, info, content)
    return made
