"""The local admin token: without API keys, /admin is for those who can read a file of the server's user.

Each server start writes a new token into the runtime folder. `bay` finds it there (`util/http_policy.py`).
"""

from __future__ import annotations

import hmac
import os
import secrets
import socket
from collections.abc import Mapping
from contextlib import suppress

from enginebay.errors import Forbidden
from enginebay.util.atomic_file import write_atomically
from enginebay.util.http_policy import TOKEN_HEADER, find_token_files
from enginebay.util.paths import runtime_dir


class AdminToken:
    """The token of this server, in a file (0600) until `remove`."""

    def __init__(self, sock: socket.socket) -> None:
        self.text = secrets.token_urlsafe(32)
        folder = runtime_dir()
        for path, is_live in find_token_files(folder, "*"):
            if not is_live:  # its server was killed
                with suppress(OSError):
                    path.unlink()
        self._path = folder / f"admin-{sock.getsockname()[1]}-{os.getpid()}.token"
        write_atomically(self._path, self.text, mode=0o600)

    def remove(self) -> None:
        with suppress(OSError):
            self._path.unlink()


def check_admin_token(headers: Mapping[str, str], expected: str) -> None:
    """Raise `Forbidden` unless the request presents the token."""
    presented = headers.get(TOKEN_HEADER, "")
    if not expected or not hmac.compare_digest(presented.encode("latin-1", "replace"), expected.encode()):
        raise Forbidden(
            "without API keys only the server's own user may manage it",
            f"send the header {TOKEN_HEADER} with what `bay keys token` prints, "
            "or create a key: bay keys create NAME --admin",
        )
