"""A request that the HTTP layer refuses by itself."""

from __future__ import annotations


class Refusal(Exception):
    """Raised while a request is read. `limit`: the exceeded setting of `server.limits`, if any."""

    def __init__(self, status: int, message: str, limit: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.limit = limit
