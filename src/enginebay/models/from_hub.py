"""Fetches a model from the Hugging Face hub: safetensors, GGUF and plain files, resumable and verified.

huggingface_hub lists the files and sends the requests, so its endpoint, token and proxy settings apply. This module
resumes interrupted files, which the library no longer does.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from enginebay.errors import EnginebayError, FetchFailed, ModelInvalid, Offline
from enginebay.models.fetch_result import DISK_FULL_ERRNOS, MODEL_DIRECTORY, FetchResult, check_disk_space
from enginebay.models.file_selection import select_files
from enginebay.models.model_manifest import compute_sha256
from enginebay.models.model_sources import HfSource
from enginebay.util.atomic_file import read_json_or_none
from enginebay.util.progress import Advance, Say, track_progress

STATE_FILE = ".hub.json"
_UNREACHABLE_ERRORS = {"TransportError", "ConnectionError", "ProxyError", "Timeout"}  # of httpx and requests
_UNREACHABLE_HINT = (
    "check the network and the proxy, then pull again to resume; else set HF_ENDPOINT to a mirror, or bring the files: "
    "`bay models pull PATH`, or a bundle (`bay bundle`)"
)
CHUNK_BYTES = 1 << 20  # the library's 10 MB would delay an interruption on a slow connection


@dataclass(frozen=True, slots=True)
class RemoteFile:
    name: str
    size: int
    sha256: str | None  # of large files
    blob: str | None  # git hash of small files


def fetch(source: HfSource, folder: Path, say: Say | None, with_code: bool = False) -> FetchResult:
    """Fetch the model's files into `folder`. Resumes what an earlier attempt left there."""
    with _translate_hub_errors(source):
        commit, files = _list_files(source, with_code)
        _discard_other_commit(folder, source, commit)
        targets = {file: _get_target_path(folder, source, file) for file in files}
        partials = map(_get_partial_path, targets.values())
        have = sum(path.stat().st_size for path in (*partials, *targets.values()) if path.exists())
        total = sum(file.size for file in files)
        check_disk_space(str(source), folder, total - have)
        with track_progress(f"fetching {source.repo}", total, say, done=have) as advance:
            hashes = {target: _fetch_file(source, commit, file, target, advance) for file, target in targets.items()}
    (folder / STATE_FILE).unlink()
    gguf = files[0].name.endswith(".gguf")
    return FetchResult(targets[files[0]] if gguf else folder / MODEL_DIRECTORY, hashes, commit)


def _list_files(source: HfSource, with_code: bool) -> tuple[str, list[RemoteFile]]:
    from huggingface_hub import HfApi

    info = HfApi().model_info(source.repo, revision=source.revision, files_metadata=True)
    files = {file.rfilename: file for file in info.siblings or []}
    safe = [name for name in files if not PurePosixPath(name).is_absolute() and ".." not in PurePosixPath(name).parts]
    names = select_files(safe, source.file, str(source), with_code)
    return str(info.sha), [_to_remote_file(files[name]) for name in names]


def _to_remote_file(file: Any) -> RemoteFile:
    large = file.lfs
    return RemoteFile(
        file.rfilename, int(file.size or 0), large.sha256 if large else None, None if large else file.blob_id
    )


def _get_target_path(folder: Path, source: HfSource, file: RemoteFile) -> Path:
    """Return where a file goes. GGUF files go directly into the model's folder."""
    return (
        folder / PurePosixPath(file.name).name if file.name.endswith(".gguf") else folder / MODEL_DIRECTORY / file.name
    )


def _get_partial_path(target: Path) -> Path:
    return target.with_name(target.name + ".part")


def _discard_other_commit(folder: Path, source: HfSource, commit: str) -> None:
    """Remove what an earlier attempt left, unless it is of the same commit."""
    state = {"source": str(source), "commit": commit}
    if read_json_or_none(folder / STATE_FILE) != state:
        for child in folder.iterdir():
            shutil.rmtree(child) if child.is_dir() else child.unlink()
        (folder / STATE_FILE).write_text(json.dumps(state))


def _fetch_file(source: HfSource, commit: str, file: RemoteFile, target: Path, advance: Advance) -> str:
    """Fetch one file, or the rest of it. Return its sha256."""
    from huggingface_hub import hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers

    if not target.exists():
        partial = _get_partial_path(target)
        partial.parent.mkdir(parents=True, exist_ok=True)
        url = hf_hub_url(source.repo, file.name, revision=commit)
        with _CountingFile(partial, advance) as output:
            resume = output.position if output.position < file.size else 0
            output.restart_at(resume)
            headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
            if file.size:
                http_get(url, output, resume_size=resume, headers=headers, expected_size=file.size)
        digest = _verify_file(source, file, partial)
        partial.rename(target)
        return digest
    return _verify_file(source, file, target)


class _CountingFile:
    """A file that counts the bytes the library writes, for the progress bar."""

    def __init__(self, path: Path, advance: Advance) -> None:
        self._file = path.open("r+b" if path.exists() else "w+b")
        self._advance = advance
        self.position = self._file.seek(0, 2)

    def restart_at(self, position: int) -> None:
        self._advance(position - self.position)
        self._file.seek(position)
        self._file.truncate()

    def write(self, chunk: bytes) -> int:
        self._advance(len(chunk))
        return self._file.write(chunk)

    def tell(self) -> int:
        return self._file.tell()

    def seek(self, position: int, whence: int = 0) -> int:
        return self._file.seek(position, whence)

    def truncate(self, size: int | None = None) -> int:
        return self._file.truncate(size)

    def flush(self) -> None:
        self._file.flush()

    def __enter__(self) -> _CountingFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def _verify_file(source: HfSource, file: RemoteFile, path: Path) -> str:
    """Return the file's sha256. Removes a file that does not match the hub, so that the next attempt starts over."""
    digest = compute_sha256(path)
    if path.stat().st_size == file.size:
        if file.sha256 is not None and digest == file.sha256:
            return digest
        if file.sha256 is None and (file.blob is None or _compute_git_hash(path) == file.blob):
            return digest
    path.unlink()
    raise ModelInvalid(f"{file.name} of {source} is corrupt: its hash does not match the hub's", "pull it again")


def _compute_git_hash(path: Path) -> str:
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


@contextmanager
def _translate_hub_errors(source: HfSource) -> Iterator[None]:
    """Translate the library's errors. Meanwhile mutes its warnings and progress bars, and shrinks its chunks."""
    from huggingface_hub import constants, errors
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    logger, bars_shown = logging.getLogger("huggingface_hub"), not are_progress_bars_disabled()
    level, chunk_size = logger.level, constants.DOWNLOAD_CHUNK_SIZE
    logger.setLevel(logging.ERROR)
    disable_progress_bars()
    constants.DOWNLOAD_CHUNK_SIZE = min(chunk_size, CHUNK_BYTES)
    try:
        yield
    except EnginebayError:
        raise
    except Exception as error:  # the HTTP library's errors move between releases
        raise _to_enginebay_error(source, error, errors) from error
    finally:
        logger.setLevel(level)
        constants.DOWNLOAD_CHUNK_SIZE = chunk_size
        if bars_shown:
            enable_progress_bars()


def _to_enginebay_error(source: HfSource, error: Exception, errors: Any) -> Exception:
    if isinstance(error, OSError) and (error.errno in DISK_FULL_ERRNOS or error.filename is not None):
        return error  # a disk error: the store translates it
    if isinstance(error, errors.OfflineModeIsEnabled):
        return Offline(
            f"{source} is not downloaded, and HF_HUB_OFFLINE is set", "unset HF_HUB_OFFLINE, or copy the model here"
        )
    if isinstance(error, errors.GatedRepoError):
        return FetchFailed(f"{source} is gated", "accept its licence on its page, then set HF_TOKEN")
    if isinstance(error, errors.RevisionNotFoundError):
        return FetchFailed(f"the hub has no revision {source.revision!r} of {source.repo}", "check the part after @")
    if isinstance(error, errors.RepositoryNotFoundError):
        return FetchFailed(f"the hub has no model {source.repo}, or it is private", "check the name, or set HF_TOKEN")
    reason = " ".join(str(error).split())[:200] or type(error).__name__
    if _is_unreachable(error):
        from huggingface_hub import constants

        return FetchFailed(f"cannot reach the hub at {constants.ENDPOINT} for {source}: {reason}", _UNREACHABLE_HINT)
    return FetchFailed(f"failed to fetch {source}: {reason}", "check the network and HF_ENDPOINT; pull again to resume")


def _is_unreachable(error: BaseException) -> bool:
    """Return whether no server answered: the HTTP library's names for it, which differ between releases."""
    names = {base.__name__ for base in type(error).__mro__}
    cause = error.__cause__ or error.__context__
    unreachable = isinstance(error, (ConnectionError, TimeoutError)) or bool(names & _UNREACHABLE_ERRORS)
    return unreachable or (
        cause is not None and "status" not in type(error).__name__.lower() and _is_unreachable(cause)
    )
