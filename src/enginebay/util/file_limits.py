"""Every connection is an open file, and the usual limit of 1024 is less than a load may need."""

from __future__ import annotations

import resource
from contextlib import suppress

_MAX_OPEN_FILES = 1 << 20  # some libraries go through every number up to the limit


def raise_open_file_limit() -> None:
    """Raise this process' limit of open files as far as it may do so itself; never lowers it."""
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_OPEN_FILES if most == resource.RLIM_INFINITY else min(most, _MAX_OPEN_FILES)
    if now != resource.RLIM_INFINITY and now < wanted:
        with suppress(ValueError, OSError):  # macOS names a highest that it does not allow
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
