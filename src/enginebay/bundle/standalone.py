"""Installs this bundle on a host that has only Python: python3 install.py [options of `bay bundle install`]

Shipped in every bundle as install.py, and also Enginebay's bundle reader. Uses the standard library only, and no
network. A file is used only if its sha256 matches the manifest.
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
MARKER_FILE = "enginebay-bundle.json"  # in a complete environment built here: names its bundle
STARTED = time.monotonic()

Advance = Callable[[int], None]
Json = dict[str, Any]


class BundleError(Exception):
    """An error with a hint on what to do."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message, self.hint = message, hint


def read_manifest(folder: Path) -> Json:
    """Read the manifest and validate its form and every path in it."""
    path = folder / MANIFEST_FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        version = content["schema_version"]
    except FileNotFoundError:
        raise BundleError(
            f"no bundle in {folder}: {MANIFEST_FILE} is missing", "pass the folder with the bundle's parts"
        ) from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise BundleError(f"{path} cannot be read: {error}", "copy it again") from None
    if not isinstance(version, int) or version > SCHEMA_VERSION:
        raise BundleError(f"{path} was written by a newer Enginebay", "use the install.py in the bundle")
    try:
        names = [part["file"] for part in content["parts"]] + [content["bootstrap"]["file"]]
        paths = [package["file"]["path"] for package in content["packages"]]
        paths += [file["path"] for model in content["models"] for file in model["files"]]
        missing = [key for key in ("platform", "arch", "python") if key not in content["target"]]
        missing += [key for key in ("version", "packages") if key not in content["bay"]]
        missing += [name for name in content["bay"].get("packages", ()) if name not in paths]
        missing += [name for engine in content["engines"] for name in engine["packages"] if name not in paths]
        safe = all(map(_is_plain_name, names)) and all(map(is_inside, paths))
        invalid = _find_invalid_records(content)
    except (KeyError, TypeError, AttributeError) as error:
        raise BundleError(f"{path} is incomplete: {error}", "copy it again") from None
    if not safe:
        raise BundleError(
            f"{path} refers to files outside the bundle", "do not use it: `bay bundle create` did not write it"
        )
    if missing:
        raise BundleError(f"{path} is incomplete: it lacks {', '.join(map(str, missing))}", "copy it again")
    if invalid:
        raise BundleError(f"{path} is corrupt: invalid entries for {', '.join(invalid[:5])}", "copy it again")
    return dict(content)


def _find_invalid_records(content: Json) -> list[str]:
    """Return the names of entries whose size, offset, hash or text has another type."""
    files = [package["file"] for package in content["packages"]]
    files += [file for model in content["models"] for file in model["files"]]
    parts = [*content["parts"], content["bootstrap"]]
    invalid = [str(part["file"]) for part in parts if not _is_record(part, ("size",))]
    invalid += [str(file["path"]) for file in files if not _is_record(file, ("size", "offset"))]
    invalid += ["a model" for model in content["models"] if not isinstance(model["manifest"].get("name"), str)]
    return invalid + [f"target.{key}" for key, value in content["target"].items() if not isinstance(value, str)]


def _is_record(record: Json, numbers: Sequence[str]) -> bool:
    """Return whether a record of a file has a hash and these whole numbers."""
    values = [record[name] for name in numbers]
    is_sized = all(isinstance(value, int) and not isinstance(value, bool) and value >= 0 for value in values)
    return is_sized and isinstance(record["sha256"], str)


def _is_plain_name(name: str) -> bool:
    return is_inside(name) and "/" not in name


def is_inside(path: str) -> bool:
    """Return whether a relative path stays inside its folder."""
    parts = PurePosixPath(path).parts
    return bool(parts) and not path.startswith(("/", "~")) and ".." not in parts and not set(path) & set("\\\0")


def find_missing_parts(folder: Path, manifest: Json) -> list[str]:
    """Return one line per part that is missing or has the wrong size. Reads no part."""
    problems = []
    for part in manifest["parts"]:
        path = folder / part["file"]
        if not path.is_file():
            problems.append(f"{part['file']} is missing")
        elif path.stat().st_size != part["size"]:
            problems.append(f"{part['file']} has {path.stat().st_size} bytes instead of {part['size']}")
    return problems


def find_corrupt_files(folder: Path, records: Sequence[Json], advance: Advance) -> list[str]:
    """Return one line per file whose hash does not match its record."""
    return [
        f"{record['file']} is corrupt: its sha256 does not match"
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
    """The parts, read as one archive."""

    def __init__(self, folder: Path, manifest: Json) -> None:
        self.folder, self.records = folder, list(manifest["parts"])

    def find_spanned_parts(self, start: int, size: int) -> list[Json]:
        """Return the parts that hold these bytes."""
        return [
            record
            for record, first in self._iter_part_offsets()
            if first < start + size and first + record["size"] > start
        ]

    def read(self, start: int, size: int) -> Iterator[bytes]:
        """Yield the bytes of one file in chunks; fewer than `size` if the parts end early."""
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
    """Write one file of the archive to `to`. Raises `BundleError`, and leaves no file, if its hash does not match."""
    to.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    file = to.open("xb")  # never overwrite or remove an existing file
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
    corrupt = find_corrupt_files(
        parts.folder, parts.find_spanned_parts(stored["offset"], stored["size"]), lambda _: None
    )
    return BundleError(
        f"{stored['path']} does not match the manifest: {'; '.join(corrupt) or 'the manifest is corrupt'}",
        "copy it again",
    )


def describe_this_python() -> Json:
    """Return the platform facts to compare with a bundle's target."""
    libc, version = platform.libc_ver()
    return {
        "python": "%d.%d" % sys.version_info[:2],  # noqa: UP031
        "platform": {"Darwin": "macos"}.get(platform.system(), platform.system().lower()),
        "arch": {"arm64": "aarch64", "amd64": "x86_64"}.get(platform.machine().lower(), platform.machine().lower()),
        "glibc": version if libc == "glibc" else "",
    }


def find_mismatch(target: Json, host: Json) -> BundleError | None:
    """Return why a bundle does not fit a Python, or None."""
    hint = "create one for this host: bay bundle create --python {python} --platform {platform} --arch {arch} ..."
    for key, label in (("platform", "platform"), ("arch", "architecture"), ("python", "Python")):
        if target[key] != host[key]:
            if key == "python":
                hint = f"run it with that Python, as in: python{target[key]} install.py, or --python PATH"
            return BundleError(f"the bundle is for {label} {target[key]}, not {host[key]}", hint.format(**host))
    if _parse_version(target.get("glibc", "")) > _parse_version(host["glibc"]):
        return BundleError(
            f"the bundle needs glibc {target['glibc']}, but this host has {host['glibc'] or 'another C library'}",
            f"create one for this host: bay bundle create --glibc {host['glibc'] or 'VERSION'} ...",
        )
    return None


def _parse_version(version: str) -> list[int]:
    return [int(part) for part in version.split(".") if part.isdigit()]


def compute_fingerprint(manifest: Json) -> str:
    """Return the sha256 of the manifest's content, which identifies the bundle."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


# The rest runs only as install.py.

_HELP = (
    "  --venv DIR          where to install bay itself",
    "  --into own|current  install each engine in its own environment (default), or in bay's",
    "  --python PATH       the Python to build with, which supplies the provided packages; default: this one",
    "  --recreate          rebuild engines that are already installed",
    "  --no-models         skip the models",
)


def main(arguments: list[str]) -> int:
    folder = Path(__file__).absolute().parent
    if arguments[:1] in (["-h"], ["--help"]):
        print(
            (__doc__ or "").splitlines()[0], *_HELP, f"by default, bay is installed in {_find_home() / 'bay'}", sep="\n"
        )
        return 0
    try:
        venv, rest = _parse_options(arguments)
        manifest = read_manifest(folder)
        _log(f"fingerprint {compute_fingerprint(manifest)}")
        mismatch = find_mismatch(manifest["target"], describe_this_python())
        if mismatch is not None:
            raise mismatch
        missing = find_missing_parts(folder, manifest)
        if missing:
            raise BundleError("; ".join(missing), "copy the missing parts into the same folder")
        bay = _install_bay(folder, manifest, venv or _find_home() / "bay")
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
        _log(f"installed; bay is {bay}")
        _log(f"next: {_suggest_next_command(bay, manifest, rest)}")
    return code


def _suggest_next_command(bay: Path, manifest: Json, rest: Sequence[str]) -> str:
    """Suggest the next command: serve the first model, or list the engines."""
    models = [] if "--no-models" in rest else [model["manifest"]["name"] for model in manifest["models"]]
    command = shlex.join([str(bay), *(["serve", models[0]] if models else ["engines", "list"])])
    # Outside its default home, bay needs the variable.
    return f"ENGINEBAY_HOME={shlex.quote(str(_find_home()))} {command}" if os.environ.get("ENGINEBAY_HOME") else command


def _parse_options(arguments: Sequence[str]) -> Any:
    """Return the --venv folder or None, and the arguments for `bay bundle install`, with this Python as the default."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for name in ("--venv", "--python", "--into"):
        parser.add_argument(name)
    try:
        options, rest = parser.parse_known_args(list(arguments))
    except argparse.ArgumentError as error:
        raise BundleError(str(error), "as in: --venv /opt/enginebay") from None
    if options.venv == "":
        raise BundleError("--venv needs a folder", "as in: --venv /opt/enginebay")
    if options.into is not None:
        rest += ["--into", options.into]
    if options.python is not None or options.into != "current":
        rest += ["--python", options.python or sys.executable]
    return Path(options.venv).expanduser().absolute() if options.venv else None, rest


def _find_home() -> Path:
    home = os.environ.get("ENGINEBAY_HOME")
    data = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(home).expanduser().absolute() if home else Path(data).expanduser().absolute() / "enginebay"


def _install_bay(folder: Path, manifest: Json, venv: Path) -> Path:
    """Build an environment with Enginebay, unless this bundle's exists already. Return the path of `bay`."""
    bay, marker, begun = venv / "bin" / "bay", venv / MARKER_FILE, venv / f".{MARKER_FILE}.begun"
    content = json.dumps({"bundle": compute_fingerprint(manifest)})
    if bay.exists() and marker.exists() and marker.read_text(encoding="utf-8") == content:
        _log(f"bay is already installed in {venv}")
        return bay
    if venv.exists() and any(venv.iterdir()) and not marker.exists() and not begun.exists():
        raise BundleError(f"{venv} exists and was not created by install.py", "choose another folder: --venv DIR")
    _log(f"installing bay {manifest['bay']['version']} in {venv}")
    scratch = venv.with_name(f".{venv.name}.wheels")
    try:
        wheels = _unpack_bay_wheels(folder, manifest, scratch)
        shutil.rmtree(venv, ignore_errors=True)  # a venv cannot be renamed, so it is built in place
        venv.mkdir(parents=True)
        begun.touch()
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
        _pip_install(venv / "bin" / "python", wheels)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    marker.write_text(content, encoding="utf-8")
    begun.unlink()
    return bay


def _unpack_bay_wheels(folder: Path, manifest: Json, scratch: Path) -> dict[str, Path]:
    shutil.rmtree(scratch, ignore_errors=True)
    packages = {package["file"]["path"]: package for package in manifest["packages"]}
    wheels: dict[str, Path] = {}
    for path in manifest["bay"]["packages"]:
        name, to = packages[path]["name"], scratch / PurePosixPath(path).name
        unpack(SplitArchive(folder, manifest), packages[path]["file"], to, lambda _: None)
        wheels[name] = to
    return wheels


def _pip_install(python: Path, wheels: dict[str, Path]) -> None:
    """Install the wheels. pip runs from its own wheel, so Python needs neither pip nor ensurepip."""
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
