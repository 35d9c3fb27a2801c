"""Reading a bundle and saying what is wrong with it, as Enginebay's own errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from enginebay.bundle import standalone
from enginebay.bundle.manifest import Manifest
from enginebay.bundle.standalone import BundleError
from enginebay.errors import EnginebayError
from enginebay.fleet.children import operation
from enginebay.fleet.models.progress import Say, tracking


@contextmanager
def as_our_errors() -> Iterator[None]:
    try:
        yield
    except BundleError as error:
        raise EnginebayError(error.message, error.hint) from None


def read(folder: Path) -> Manifest:
    """The manifest of a bundle. Raises `EnginebayError` for what is none."""
    with as_our_errors():
        data = standalone.read_manifest(folder)
    try:
        return Manifest.from_json(data)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise EnginebayError(
            f"{folder / standalone.MANIFEST} is not a whole manifest: {error!r}", "copy it again"
        ) from None


def fingerprint(manifest: Manifest) -> str:
    return standalone.fingerprint(manifest.to_json())


@operation()
def problems(folder: Path, manifest: Manifest, say: Say | None = None) -> list[str]:
    """One line for each part that is missing or damaged; every byte is read."""
    data = manifest.to_json()
    found = standalone.absent(folder, {**data, "parts": [*data["parts"], data["bootstrap"]]})
    wrong = {line.partition(" ")[0] for line in found}
    there = [record for record in (*data["parts"], data["bootstrap"]) if record["file"] not in wrong]
    with tracking("verifying", sum(record["size"] for record in there), say) as advance:
        return found + standalone.damaged(folder, there, advance)


def not_usable(found: list[str]) -> EnginebayError:
    """The error for a bundle with problems: the first ones by name."""
    more = f"; and {len(found) - 5} more" if len(found) > 5 else ""
    return EnginebayError(f"the bundle is not whole: {'; '.join(found[:5])}{more}", "copy those files again")
