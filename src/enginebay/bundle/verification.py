"""Reading a bundle and saying what is wrong with it, as Enginebay's own errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from enginebay.bundle import standalone
from enginebay.bundle.bundle_manifest import BundleManifest
from enginebay.bundle.standalone import BundleError
from enginebay.errors import EnginebayError
from enginebay.util.child_processes import interruptible
from enginebay.util.progress import Say, track_progress


@contextmanager
def translate_bundle_errors() -> Iterator[None]:
    try:
        yield
    except BundleError as error:
        raise EnginebayError(error.message, error.hint) from None


def read_bundle_manifest(folder: Path) -> BundleManifest:
    """The manifest of a bundle. Raises `EnginebayError` for what is none."""
    with translate_bundle_errors():
        data = standalone.read_manifest(folder)
    try:
        return BundleManifest.from_json(data)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise EnginebayError(
            f"{folder / standalone.MANIFEST_FILE} is not a whole manifest: {error!r}", "copy it again"
        ) from None


def compute_fingerprint(manifest: BundleManifest) -> str:
    return standalone.compute_fingerprint(manifest.to_json())


@interruptible()
def find_problems(folder: Path, manifest: BundleManifest, say: Say | None = None) -> list[str]:
    """One line for each part that is missing or damaged; every byte is read."""
    data = manifest.to_json()
    found = standalone.find_missing_parts(folder, {**data, "parts": [*data["parts"], data["bootstrap"]]})
    wrong = {line.partition(" ")[0] for line in found}
    there = [record for record in (*data["parts"], data["bootstrap"]) if record["file"] not in wrong]
    with track_progress("verifying", sum(record["size"] for record in there), say) as advance:
        return found + standalone.find_damaged_files(folder, there, advance)


def incomplete_bundle_error(found: list[str]) -> EnginebayError:
    """The error for a bundle with problems: the first ones by name."""
    more = f"; and {len(found) - 5} more" if len(found) > 5 else ""
    return EnginebayError(f"the bundle is not whole: {'; '.join(found[:5])}{more}", "copy those files again")
