"""Where Enginebay keeps things on this host."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from enginebay.errors import ConfigError


def home_dir() -> Path:
    """Engines, models and logs: `ENGINEBAY_HOME`, else the XDG data directory."""
    given = os.environ.get("ENGINEBAY_HOME")
    if given:
        return Path(given).expanduser().absolute()
    data = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(data).expanduser().absolute() / "enginebay"


def engines_dir() -> Path:
    return home_dir() / "engines"


def models_dir() -> Path:
    return home_dir() / "models"


def logs_dir() -> Path:
    return home_dir() / "logs"


def runtime_dir() -> Path:
    """A private directory (0700) for sockets. Short, since a socket's path has 108 bytes at most."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    if base and len(base) < 60 and os.access(base, os.W_OK):
        path = Path(base) / "enginebay"
    else:
        path = Path(tempfile.gettempdir() if len(tempfile.gettempdir()) < 60 else "/tmp") / f"enginebay-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise ConfigError(f"{path} is not a private directory of yours", f"remove it, or run: chmod 700 {path}")
    return path
