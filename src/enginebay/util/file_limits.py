"""The open-file limit: every connection counts, and the usual 1024 is too low for a busy server."""

from __future__ import annotations

import resource
from contextlib import suppress

_MAX_OPEN_FILES = 1 << 20  # some libraries iterate over every descriptor up to the limit


def raise_open_file_limit() -> None:
    """Raise the soft limit of open files towards the hard limit. Never lowers it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = _MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _MAX_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < target:
        with suppress(ValueError, OSError):  # macOS reports a hard limit that it does not allow
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
