"""One HTTP request to the API on its way through the server: who asks, which model, how it ended."""

from __future__ import annotations

import re
import time
from typing import Any

from enginebay.contract import Sampling
from enginebay.contract.messages import Usage
from enginebay.errors import EnginebayError
from enginebay.server.http.exchange import Exchange
from enginebay.server.keys import Key
from enginebay.server.served import ServedModel

_SAFE_ID = re.compile(r"^[A-Za-z0-9._:\-]{1,128}$")


class Call:
    """Facts are added as they become known; `app` reads them once at the end."""

    __slots__ = (
        "endpoint", "error", "exchange", "id", "key", "lora", "model", "prompt", "queued_s", "sampling", "served", "started",
        "stream", "ttft_s", "usage",
    )  # fmt: skip

    def __init__(self, exchange: Exchange, endpoint: str, fresh_id: str) -> None:
        given = exchange.headers.get("x-request-id", "")
        self.exchange = exchange
        self.endpoint = endpoint
        self.id = given if _SAFE_ID.match(given) else fresh_id
        self.started = time.time()
        self.key: Key | None = None
        self.model = ""
        self.served: ServedModel | None = None
        self.lora: str | None = None
        self.usage = Usage()
        self.queued_s = 0.0
        self.ttft_s: float | None = None
        self.stream = False
        self.error: EnginebayError | None = None
        self.prompt: Any = None
        self.sampling: Sampling | None = None
        exchange.header("x-request-id", self.id)
