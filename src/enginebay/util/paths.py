"""Directories that Enginebay uses on this host."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from enginebay.errors import ConfigError


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


def runtime_dir() -> Path:
    """Return a private directory (0700) for sockets. Its path is short: a socket path has at most 108 bytes."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    if base and len(base) < 60 and os.access(base, os.W_OK):
        path = Path(base) / "enginebay"
    else:
        path = Path(tempfile.gettempdir() if len(tempfile.gettempdir()) < 60 else "/tmp") / f"enginebay-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise ConfigError(f"{path} is not a private directory that you own", f"remove it, or run: chmod 700 {path}")
    return path
