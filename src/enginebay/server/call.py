"""One HTTP request to the API on its way through the server: who asks, which model, how it ended."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from typing import Any, TypeVar

from enginebay.contract import Sampling
from enginebay.contract.messages import Usage
from enginebay.errors import EnginebayError
from enginebay.server.http.exchange import Exchange
from enginebay.server.keys import Key
from enginebay.server.offers import Offer
from enginebay.server.served import ServedModel

_LARGE_BYTES = 32 << 10  # some milliseconds of work
T = TypeVar("T")

_SAFE_ID = re.compile(r"^[A-Za-z0-9._:\-]{1,128}$")


class Call:
    """Facts are added as they become known; `app` reads them once at the end."""

    __slots__ = (
        "deaths", "endpoint", "error", "exchange", "fallback", "finish_reason", "first_error", "give_up_at", "id", "key", "labels", "left_out", "lora",
        "model", "offer", "prompt", "queued_s", "sampling", "served", "started", "stream", "told", "translated", "ttft_s", "usage", "variant",
    )  # fmt: skip

    def __init__(self, exchange: Exchange, endpoint: str, fresh_id: str) -> None:
        given = exchange.headers.get("x-request-id", "")
        self.exchange = exchange
        self.endpoint = endpoint
        self.id = given if _SAFE_ID.match(given) else fresh_id
        self.started = time.time() - (time.perf_counter() - exchange.received)  # from where durations are counted
        self.key: Key | None = None
        self.model = ""
        self.offer: Offer | None = None
        self.labels = ("(none)", "(none)")  # model and engine, once they are known
        self.served: ServedModel | None = None
        self.variant = 0  # which engine of the model's chain is asked
        self.fallback = ""  # why it is not the first
        self.first_error: EnginebayError | None = None  # of the engine that should have answered
        self.deaths = 0  # workers that were lost over this request
        self.give_up_at: float | None = None  # when waiting for the model has lasted long enough
        self.told = False  # the stream has begun with comments about the wait
        self.lora: str | None = None
        self.usage = Usage()
        self.queued_s = 0.0  # until a worker got it
        self.ttft_s: float | None = None
        self.stream = False
        self.finish_reason = ""
        self.error: EnginebayError | None = None
        self.prompt: Any = None
        self.sampling: Sampling | None = None
        self.translated: dict[str, str] = {}  # parameters that are not carried out to the letter, and what is done
        self.left_out = 0  # tokens of the prompt that were cut off, as the request wished
        exchange.header("x-request-id", self.id)

    @property
    def untouched(self) -> bool:
        """Nothing of an answer has been sent: the client would not notice another try."""
        return not self.exchange.started or self.told

    def again(self, mark: int) -> None:
        """Back to where the request had been let in."""
        self.exchange.rewind(mark)
        self.served = None
        self.translated = {}
        self.left_out = 0
        self.queued_s = 0.0

    def comment(self, text: str) -> None:
        """Tell whoever reads the stream something that is no event."""
        if not self.exchange.started:
            self.told = True
            self.exchange.start(200, "text/event-stream; charset=utf-8", {"cache-control": "no-cache"})
        self.exchange.write(b": %b\n\n" % " ".join(text.split()).encode("utf-8", "replace"))

    def say(self, name: str, value: str) -> None:
        """In a header; in a comment, once the headers are gone."""
        if self.told:
            self.comment(f"{name}: {value}")
        else:
            self.exchange.header(name, value)

    @property
    def large(self) -> bool:
        """So much to read that it is done beside the event loop."""
        return len(self.exchange.body) > _LARGE_BYTES

    async def beside(self, work: Callable[..., T], *args: Any) -> T:
        """Do something whose cost grows with the body: here when it is small, else in a thread."""
        return await asyncio.to_thread(work, *args) if self.large else work(*args)
