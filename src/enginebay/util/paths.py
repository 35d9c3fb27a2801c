"""Directories that Enginebay uses on this host, closed to other users."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from enginebay.errors import ConfigError

_MAX_BASE_CHARS = 60  # a socket path has at most 108 bytes
_SHARED_BASES = ("/tmp", "/var/tmp", "/dev/shm")


def home_dir() -> Path:
    """Return the root of engines, models and logs: `ENGINEBAY_HOME`, else the XDG data directory."""
    configured = os.environ.get("ENGINEBAY_HOME")
    if configured:
        return Path(configured).expanduser().absolute()
    data = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(data).expanduser().absolute() / "enginebay"


def engines_dir() -> Path:
    return home_dir() / "engines"


def models_dir() -> Path:
    return home_dir() / "models"


def logs_dir() -> Path:
    return home_dir() / "logs"


def prepare_home() -> None:
    """Create the home for its owner only. Close the default one if everybody can read it, and the logs. Never raises.

    A folder that `ENGINEBAY_HOME` names may have other uses, so its mode stays.
    """
    with suppress(OSError):
        home_dir().mkdir(mode=0o700, parents=True, exist_ok=True)
    with suppress(OSError):
        if not os.environ.get("ENGINEBAY_HOME"):
            _close_to_others(home_dir())
    with suppress(OSError):
        if _close_to_others(logs_dir()):
            for log in logs_dir().glob("*.log"):
                if not log.is_symlink():
                    log.chmod(0o600)


def _close_to_others(folder: Path) -> bool:
    """Close our own folder if everybody can read it. Group access alone was set on purpose. Return whether it changed."""
    status = folder.lstat()
    is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & stat.S_ISVTX
    is_open = is_ours and bool(status.st_mode & 0o007)
    if is_open:
        folder.chmod(0o700)
    return is_open


def open_log_file(path: Path, *, append: bool) -> int:
    """Open a log for writing and return its descriptor. Only its owner can read it."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (os.O_APPEND if append else os.O_TRUNC)
    descriptor = os.open(path, flags, 0o600)
    with suppress(OSError):  # another user's, or a file system without modes
        os.fchmod(descriptor, 0o600)
    return descriptor


def runtime_dir() -> Path:
    """Return a private directory (0700) for sockets. Skips one that another user made before us."""
    for path in _list_runtime_candidates():
        with suppress(OSError):
            path.mkdir(mode=0o700, exist_ok=True)
            if _is_private(path):
                return path
    tried = ", ".join(map(str, _list_runtime_candidates()))
    raise ConfigError(
        f"none of these is a private directory that you own: {tried}",
        "set XDG_RUNTIME_DIR to a directory of yours with mode 700",
    )


def find_runtime_dirs() -> Iterator[Path]:
    """Yield the private directories that servers of this user may have chosen, whatever their environment was."""
    for path in _list_runtime_candidates(f"/run/user/{os.getuid()}"):
        with suppress(OSError):
            if _is_private(path):
                yield path


def _list_runtime_candidates(default_base: str = "") -> list[Path]:
    """List the directories by preference. Their paths are short, for sockets."""
    base = os.environ.get("XDG_RUNTIME_DIR") or default_base
    own = [Path(base) / "enginebay"] if base and len(base) < _MAX_BASE_CHARS and os.access(base, os.W_OK) else []
    bases = [tempfile.gettempdir(), *_SHARED_BASES]
    shared = [Path(base) / f"enginebay-{os.getuid()}" for base in bases if len(base) < _MAX_BASE_CHARS]
    home = [home_dir() / "run"] if len(str(home_dir())) < _MAX_BASE_CHARS else []
    return list(dict.fromkeys((*own, *shared[:1], *home, *shared[1:])))


def _is_private(path: Path) -> bool:
    status = path.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077
