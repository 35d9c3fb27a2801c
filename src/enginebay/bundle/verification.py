"""Reads and verifies a bundle, and translates its errors."""

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
    """Read the manifest of a bundle. Raises `EnginebayError`."""
    with translate_bundle_errors():
        data = standalone.read_manifest(folder)
    try:
        return BundleManifest.from_json(data)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise EnginebayError(f"{folder / standalone.MANIFEST_FILE} is incomplete: {error!r}", "copy it again") from None


def compute_fingerprint(manifest: BundleManifest) -> str:
    return standalone.compute_fingerprint(manifest.to_json())


@interruptible()
def find_problems(folder: Path, manifest: BundleManifest, say: Say | None = None) -> list[str]:
    """Return one line per part that is missing or corrupt. Reads every byte."""
    data = manifest.to_json()
    problems = standalone.find_missing_parts(folder, {**data, "parts": [*data["parts"], data["bootstrap"]]})
    missing = {line.partition(" ")[0] for line in problems}
    present = [record for record in (*data["parts"], data["bootstrap"]) if record["file"] not in missing]
    with track_progress("verifying", sum(record["size"] for record in present), say) as advance:
        return problems + standalone.find_corrupt_files(folder, present, advance)


def incomplete_bundle_error(problems: list[str]) -> EnginebayError:
    """Return the error for a bundle with problems. Names the first five."""
    more = f"; and {len(problems) - 5} more" if len(problems) > 5 else ""
    return EnginebayError(f"the bundle is incomplete: {'; '.join(problems[:5])}{more}", "copy those files again")
