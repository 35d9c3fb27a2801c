"""Installs this bundle on a host that has nothing but Python: python3 install.py [options of `bay bundle install`]

It lies in a bundle as install.py, and is also the part of Enginebay that reads bundles: the standard library only, no
network. Every file is taken from the place that the manifest names, and is used only if its sha256 is the manifest's.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

MANIFEST_FILE = "bundle.json"
SCHEMA_VERSION = 1
CHUNK = 1 << 20
MARKER_FILE = (
    "enginebay-bundle.json"  # in an environment that was made here: of which bundle; written when all is in it
)
STARTED = time.monotonic()

Advance = Callable[[int], None]
Json = dict[str, Any]


class BundleError(Exception):
    """What is wrong, and what to do."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message, self.hint = message, hint


def read_manifest(folder: Path) -> Json:
    """The manifest, once its form and every path in it are known to be harmless."""
    path = folder / MANIFEST_FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        version = content["schema_version"]
    except FileNotFoundError:
        raise BundleError(
            f"{folder} holds no bundle: there is no {MANIFEST_FILE}", "give the folder with the parts"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BundleError(f"{path} cannot be read: {error}", "copy it again") from None
    if not isinstance(version, int) or version > SCHEMA_VERSION:
        raise BundleError(f"{path} was written by a newer Enginebay", "install it with that version's install.py")
    try:
        names = [part["file"] for part in content["parts"]] + [content["bootstrap"]["file"]]
        paths = [one["file"]["path"] for one in content["packages"]]
        paths += [file["path"] for model in content["models"] for file in model["files"]]
        missing = [key for key in ("platform", "arch", "python") if key not in content["target"]]
        missing += [key for key in ("version", "packages") if key not in content["bay"]]
        missing += [name for name in content["bay"].get("packages", ()) if name not in paths]
        harmless = all(map(_is_plain_name, names)) and all(map(is_inside, paths))
    except (KeyError, TypeError, AttributeError) as error:
        raise BundleError(f"{path} is not a whole manifest: {error}", "copy it again") from None
    if missing:
        raise BundleError(f"{path} is not a whole manifest: it lacks {', '.join(missing)}", "copy it again")
    if not harmless:
        raise BundleError(
            f"{path} names files outside the bundle", "do not use it: it was not made by `bay bundle create`"
        )
    return dict(content)


def _is_plain_name(name: str) -> bool:
    return is_inside(name) and "/" not in name


def is_inside(path: str) -> bool:
    """Whether a path stays below the folder it is put into."""
    parts = PurePosixPath(path).parts
    return bool(parts) and not path.startswith(("/", "~")) and ".." not in parts and not set(path) & set("\\\0")


def find_missing_parts(folder: Path, manifest: Json) -> list[str]:
    """One line for each part that is missing or has another size; reads no part."""
    found = []
    for part in manifest["parts"]:
        path = folder / part["file"]
        if not path.is_file():
            found.append(f"{part['file']} is missing")
        elif path.stat().st_size != part["size"]:
            found.append(f"{part['file']} has {path.stat().st_size} bytes instead of {part['size']}")
    return found


def find_damaged_files(folder: Path, records: Sequence[Json], advance: Advance) -> list[str]:
    """One line for each of these files (parts, or what lies beside them) whose content is not the manifest's."""
    return [
        f"{record['file']} is damaged: its sha256 is another one"
        for record in records
        if _hash_file(folder / record["file"], advance) != record["sha256"]
    ]


def _hash_file(path: Path, advance: Advance) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for chunk in iter(lambda: file.read(CHUNK), b""):
            digest.update(chunk)
            advance(len(chunk))
    return digest.hexdigest()


class SplitArchive:
    """The parts, read as the one archive they were cut from."""

    def __init__(self, folder: Path, manifest: Json) -> None:
        self.folder, self.records = folder, list(manifest["parts"])

    def find_spanned_parts(self, start: int, size: int) -> list[Json]:
        """The parts in which these bytes lie."""
        return [
            record
            for record, first in self._iter_part_offsets()
            if first < start + size and first + record["size"] > start
        ]

    def read(self, start: int, size: int) -> Iterator[bytes]:
        """The bytes of one file, in pieces; fewer than asked for if the parts end before."""
        for record, first in self._iter_part_offsets():
            begin, end = max(start, first), min(start + size, first + record["size"])
            if begin >= end:
                continue
            with (self.folder / record["file"]).open("rb") as file:
                file.seek(begin - first)
                left = end - begin
                while left and (chunk := file.read(min(CHUNK, left))):
                    left -= len(chunk)
                    yield chunk

    def _iter_part_offsets(self) -> Iterator[Any]:
        first = 0
        for record in self.records:
            yield record, first
            first += record["size"]


def unpack(parts: SplitArchive, stored: Json, to: Path, advance: Advance) -> None:
    """Write one file of the archive to `to`. Raises, and leaves nothing there, if it is not what was packed."""
    to.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    file = to.open("xb")  # what is there already is not ours to remove
    try:
        with file:
            for chunk in parts.read(stored["offset"], stored["size"]):
                digest.update(chunk)
                file.write(chunk)
                advance(len(chunk))
        if digest.hexdigest() != stored["sha256"]:
            raise _corrupt_file_error(parts, stored)
    except BaseException:
        with contextlib.suppress(OSError):
            to.unlink()
        raise


def _corrupt_file_error(parts: SplitArchive, stored: Json) -> BundleError:
    wrong = find_damaged_files(parts.folder, parts.find_spanned_parts(stored["offset"], stored["size"]), lambda _: None)
    return BundleError(
        f"{stored['path']} is not what was packed: {'; '.join(wrong) or 'the manifest is damaged'}", "copy it again"
    )


def describe_this_python() -> Json:
    """What a bundle's target is compared with."""
    libc, version = platform.libc_ver()
    return {
        "python": "%d.%d" % sys.version_info[:2],  # noqa: UP031
        "platform": {"Darwin": "macos"}.get(platform.system(), platform.system().lower()),
        "arch": {"arm64": "aarch64", "amd64": "x86_64"}.get(platform.machine().lower(), platform.machine().lower()),
        "glibc": version if libc == "glibc" else "",
    }


def find_mismatch(target: Json, here: Json) -> BundleError | None:
    """Why a bundle cannot be used by a Python, or None."""
    hint = "make one for this host: bay bundle create --python {python} --platform {platform} --arch {arch} ..."
    for key, what in (("platform", "system"), ("arch", "processor"), ("python", "Python")):
        if target[key] != here[key]:
            wanted, there = target[key], here[key]
            if key == "python":
                hint = f"run it with that Python, as in: python{wanted} install.py, or --python PATH"
            return BundleError(f"the bundle is for another {what}: {wanted}, not {there}", hint.format(**here))
    if _parse_version(target.get("glibc", "")) > _parse_version(here["glibc"]):
        return BundleError(
            f"the bundle needs glibc {target['glibc']}, and this host has {here['glibc'] or 'another C library'}",
            f"make one for this host: bay bundle create --glibc {here['glibc'] or 'VERSION'} ...",
        )
    return None


def _parse_version(version: str) -> list[int]:
    return [int(part) for part in version.split(".") if part.isdigit()]


def compute_fingerprint(manifest: Json) -> str:
    """The sha256 of what the manifest says: what two people compare to know that they have the same bundle."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


# From here on: only when run as install.py.

_HELP = (
    "  --venv DIR          where bay itself goes",
    "  --into own|current  an environment of each engine's own (default), or the one that bay is in",
    "  --python PATH       the Python to build with, whose packages count as provided; default: this one",
    "  --recreate          build an engine anew though it is installed",
    "  --no-models         leave the models out",
)


def main(arguments: list[str]) -> int:
    folder = Path(__file__).absolute().parent
    if arguments[:1] in (["-h"], ["--help"]):
        print(
            (__doc__ or "").splitlines()[0], *_HELP, f"bay itself goes to {_find_home() / 'bay'} by default", sep="\n"
        )
        return 0
    try:
        place, rest = _parse_options(arguments)
        manifest = read_manifest(folder)
        _log(f"fingerprint {compute_fingerprint(manifest)}")
        wrong = find_mismatch(manifest["target"], describe_this_python())
        if wrong is not None:
            raise wrong
        missing = find_missing_parts(folder, manifest)
        if missing:
            raise BundleError("; ".join(missing), "copy the missing parts into the same folder")
        bay = _install_bay(folder, manifest, place or _find_home() / "bay")
    except BundleError as error:
        print(
            f"install.py: {error.message}",
            *([f"            {error.hint}"] if error.hint else []),
            sep="\n",
            file=sys.stderr,
        )
        return 1
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"install.py: {error}", file=sys.stderr)
        return 1
    code = subprocess.run([str(bay), "bundle", "install", str(folder), *rest], check=False).returncode
    if code == 0:
        _log(f"all is installed; bay is {bay}")
        _log(f"next: {_suggest_next_command(bay, manifest, rest)}")
    return code


def _suggest_next_command(bay: Path, manifest: Json, rest: Sequence[str]) -> str:
    """What a person most likely wants now: a model served, or else to see what there is."""
    models = [] if "--no-models" in rest else [model["manifest"]["name"] for model in manifest["models"]]
    command = shlex.join([str(bay), *(["serve", models[0]] if models else ["engines", "list"])])
    # Elsewhere than where bay looks by itself, it must be told.
    return f"ENGINEBAY_HOME={shlex.quote(str(_find_home()))} {command}" if os.environ.get("ENGINEBAY_HOME") else command


def _parse_options(arguments: Sequence[str]) -> Any:
    """Where bay itself goes, if that is said, and what `bay bundle install` is told: this Python unless another is named."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for name in ("--venv", "--python", "--into"):
        parser.add_argument(name)
    try:
        given, rest = parser.parse_known_args(list(arguments))
    except argparse.ArgumentError as error:
        raise BundleError(str(error), "as in: --venv /opt/enginebay") from None
    if given.venv == "":
        raise BundleError("--venv needs a folder", "as in: --venv /opt/enginebay")
    if given.into is not None:
        rest += ["--into", given.into]
    if given.python is not None or given.into != "current":
        rest += ["--python", given.python or sys.executable]
    return Path(given.venv).expanduser().absolute() if given.venv else None, rest


def _find_home() -> Path:
    given = os.environ.get("ENGINEBAY_HOME")
    data = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(given).expanduser().absolute() if given else Path(data).expanduser().absolute() / "enginebay"


def _install_bay(folder: Path, manifest: Json, venv: Path) -> Path:
    """An environment with Enginebay in it; made anew unless it is this bundle's own already."""
    bay, mark, begun = venv / "bin" / "bay", venv / MARKER_FILE, venv / f".{MARKER_FILE}.begun"
    ours = json.dumps({"bundle": compute_fingerprint(manifest)})
    if bay.exists() and mark.exists() and mark.read_text(encoding="utf-8") == ours:
        _log(f"bay is in {venv} already")
        return bay
    if venv.exists() and any(venv.iterdir()) and not mark.exists() and not begun.exists():
        raise BundleError(f"{venv} is there already, and is not ours", "give another place: --venv DIR")
    _log(f"installing bay {manifest['bay']['version']} in {venv}")
    scratch = venv.with_name(f".{venv.name}.wheels")
    try:
        wheels = _unpack_bay_wheels(folder, manifest, scratch)
        shutil.rmtree(venv, ignore_errors=True)  # a Python environment cannot be renamed, so there is no other way
        venv.mkdir(parents=True)
        begun.touch()
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
        _pip_install(venv / "bin" / "python", wheels)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    mark.write_text(ours, encoding="utf-8")
    begun.unlink()
    return bay


def _unpack_bay_wheels(folder: Path, manifest: Json, scratch: Path) -> dict[str, Path]:
    shutil.rmtree(scratch, ignore_errors=True)
    packages = {one["file"]["path"]: one for one in manifest["packages"]}
    wheels: dict[str, Path] = {}
    for path in manifest["bay"]["packages"]:
        name, to = packages[path]["name"], scratch / PurePosixPath(path).name
        unpack(SplitArchive(folder, manifest), packages[path]["file"], to, lambda _: None)
        wheels[name] = to
    return wheels


def _pip_install(python: Path, wheels: dict[str, Path]) -> None:
    """pip runs from its own wheel, so that a Python without pip or ensurepip will do."""
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__")
    env = {name: value for name, value in os.environ.items() if not name.startswith("PIP_") and name not in hidden}
    env["PIP_CONFIG_FILE"] = os.devnull
    options = ["--quiet", "--no-input", "--disable-pip-version-check", "--no-index", "--no-deps"]
    pip = [str(python), str(wheels["pip"] / "pip"), "install"]
    subprocess.run([*pip, *options, *map(str, wheels.values())], env=env, check=True)


def _log(text: str) -> None:
    print(f"[{time.monotonic() - STARTED:4.0f} s] {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
