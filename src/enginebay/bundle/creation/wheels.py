"""Reads, writes and trims wheels."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import zipfile
from collections.abc import Callable, Iterable, Mapping
from email.message import Message
from email.parser import HeaderParser
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import IO

import enginebay
from enginebay.environments.dist_requirements import canonicalize_name
from enginebay.errors import EnginebayError, FetchFailed

_WHEEL_FILE = b"Wheel-Version: 1.0\nGenerator: enginebay\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
_KEPT_METADATA = ("METADATA", "entry_points.txt", "licenses/LICENSE")
_CHUNK = 1 << 20
_LARGE_FILE_BYTES = 8 << 20
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest zip date; a fixed one makes wheels reproducible


def build_own_wheel(into: Path) -> Path:
    """Build a wheel of the running Enginebay. Needs no network, source tree or build tool."""
    try:
        installed: Distribution = distribution("enginebay")
    except PackageNotFoundError:
        raise EnginebayError("enginebay is not installed", "run: pip install -e .") from None
    info = f"enginebay-{installed.version}.dist-info"
    content = {
        f"{info}/{name}": text.encode() for name in _KEPT_METADATA if (text := installed.read_text(name)) is not None
    }
    content[f"{info}/WHEEL"] = _WHEEL_FILE
    package = Path(enginebay.__file__).parent
    for file in package.rglob("*"):
        if file.is_file() and "__pycache__" not in file.parts:
            content[f"enginebay/{file.relative_to(package).as_posix()}"] = file.read_bytes()
    into.mkdir(parents=True, exist_ok=True)
    path = into / f"enginebay-{installed.version}-py3-none-any.whl"
    write_wheel(path, info, content)
    return path


def read_name_and_version(wheel: Path) -> tuple[str, str]:
    """Return the canonical name and the version from the wheel's metadata."""
    headers = read_metadata(wheel)
    return canonicalize_name(headers["Name"]), headers["Version"]


def read_metadata(wheel: Path) -> Message:
    try:
        with zipfile.ZipFile(wheel) as archive:
            return HeaderParser().parsestr(archive.read(f"{_find_dist_info(archive)}/METADATA").decode())
    except (zipfile.BadZipFile, KeyError, StopIteration) as error:
        raise FetchFailed(f"{wheel.name} is not a wheel: {error}", "fetch it again") from None


def _find_dist_info(archive: zipfile.ZipFile) -> str:
    """Return the wheel's .dist-info folder."""
    suffix = ".dist-info/METADATA"
    return next(name for name in archive.namelist() if name.endswith(suffix) and name.count("/") == 1).partition("/")[0]


def write_wheel(path: Path, info: str, content: Mapping[str, bytes]) -> None:
    """Write a wheel of these files. `info` is its .dist-info folder, which gets the RECORD."""
    with _WheelWriter(path, info) as wheel:
        for name in sorted(content, key=lambda name: (name.startswith(info), name)):
            wheel.add(zipfile.ZipInfo(name, _EPOCH), io.BytesIO(content[name]))


def copy_without(wheel: Path, cut: Iterable[str], label: str, into: Path, advance: Callable[[int], None]) -> Path:
    """Copy a wheel without some files. The copy is a valid wheel with a build tag that marks it."""
    removed = set(cut)
    name, version, *tags = wheel.name.removesuffix(".whl").split("-")
    build = f"0{label}"
    target = into / f"{'-'.join((name, version, build, *tags[-3:]))}.whl"
    with zipfile.ZipFile(wheel) as source:
        info = _find_dist_info(source)
        with _WheelWriter(target, info) as copy:
            for entry in source.infolist():
                if entry.is_dir() or entry.filename in removed or entry.filename == f"{info}/RECORD":
                    continue
                with source.open(entry) as file:
                    tagged = entry.filename == f"{info}/WHEEL"
                    copy.add(entry, io.BytesIO(_set_build_tag(file.read(), build)) if tagged else file, advance)
    return target


def _set_build_tag(content: bytes, build: str) -> bytes:
    lines = [line for line in content.decode().splitlines() if line.strip() and not line.startswith("Build:")]
    return "\n".join([*lines, f"Build: {build}", ""]).encode()


def list_file_sizes(wheel: Path) -> dict[str, int]:
    """Return the size of each file in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return {entry.filename: entry.file_size for entry in archive.infolist() if not entry.is_dir()}


class _WheelWriter:
    """Writes the files of a wheel, then their RECORD."""

    def __init__(self, path: Path, info: str) -> None:
        self._archive = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED)
        self._record, self._lines = f"{info}/RECORD", list[tuple[str, str, str]]()

    def __enter__(self) -> _WheelWriter:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            text = io.StringIO()
            csv.writer(text, lineterminator="\n").writerows([*self._lines, (self._record, "", "")])
            self._archive.writestr(self._make_entry(zipfile.ZipInfo(self._record, _EPOCH)), text.getvalue())
        self._archive.close()

    def add(self, like: zipfile.ZipInfo, content: IO[bytes], advance: Callable[[int], None] = lambda _: None) -> None:
        digest, size = hashlib.sha256(), 0
        with self._archive.open(self._make_entry(like), "w", force_zip64=like.file_size > 1 << 31) as file:
            while chunk := content.read(_CHUNK):
                file.write(chunk)
                digest.update(chunk)
                size += len(chunk)
                advance(len(chunk))
        encoded = base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode()
        self._lines.append((like.filename, f"sha256={encoded}", str(size)))

    def _make_entry(self, like: zipfile.ZipInfo) -> zipfile.ZipInfo:
        entry = zipfile.ZipInfo(like.filename, like.date_time)
        entry.compress_type = zipfile.ZIP_LZMA if _is_highly_compressible(like) else zipfile.ZIP_DEFLATED
        entry.external_attr = like.external_attr or 0o100644 << 16  # keeps executable bits
        return entry


def _is_highly_compressible(entry: zipfile.ZipInfo) -> bool:
    """Return whether a file is large and repetitive: LZMA, which pip can read, is a third of deflate there."""
    return entry.file_size > _LARGE_FILE_BYTES and entry.compress_size * 2 < entry.file_size
