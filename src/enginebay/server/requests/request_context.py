"""One HTTP request to the API on its way through the server: who asks, which model, how it ended."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from typing import Any, TypeVar

from enginebay.contract import Sampling
from enginebay.contract.engine_messages import Usage
from enginebay.errors import EnginebayError
from enginebay.server.auth.api_keys import ApiKey
from enginebay.server.http.exchange import Exchange
from enginebay.server.sessions.model_catalog import CatalogEntry
from enginebay.server.sessions.model_session import ModelSession

_LARGE_BYTES = 32 << 10  # some milliseconds of work
T = TypeVar("T")

_SAFE_ID = re.compile(r"^[A-Za-z0-9._:\-]{1,128}$")


class RequestContext:
    """Facts are added as they become known; `app` reads them once at the end."""

    __slots__ = (
        "catalog_entry",
        "endpoint",
        "error",
        "exchange",
        "fallback",
        "finish_reason",
        "first_error",
        "id",
        "key",
        "labels",
        "lora",
        "model",
        "prompt",
        "queued_s",
        "sampling",
        "session",
        "started_at",
        "stream",
        "translated",
        "truncated_tokens",
        "ttft_s",
        "usage",
        "variant_index",
        "wait_announced",
        "wait_deadline",
        "worker_deaths",
    )  # fmt: skip

    def __init__(self, exchange: Exchange, endpoint: str, generated_id: str) -> None:
        given = exchange.headers.get("x-request-id", "")
        self.exchange = exchange
        self.endpoint = endpoint
        self.id = given if _SAFE_ID.match(given) else generated_id
        self.started_at = time.time() - (time.perf_counter() - exchange.received_at)  # from where durations are counted
        self.key: ApiKey | None = None
        self.model = ""
        self.catalog_entry: CatalogEntry | None = None
        self.labels = ("(none)", "(none)")  # model and engine, once they are known
        self.session: ModelSession | None = None
        self.variant_index = 0  # which engine of the model's chain is asked
        self.fallback = ""  # why it is not the first
        self.first_error: EnginebayError | None = None  # of the engine that should have answered
        self.worker_deaths = 0  # workers that were lost over this request
        self.wait_deadline: float | None = None  # when waiting for the model has lasted long enough
        self.wait_announced = False  # the stream has begun with comments about the wait
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
        self.truncated_tokens = 0  # tokens of the prompt that were cut off, as the request wished
        exchange.add_header("x-request-id", self.id)

    @property
    def nothing_sent(self) -> bool:
        """Nothing of an answer has been sent: the client would not notice another try."""
        return not self.exchange.started or self.wait_announced

    def reset_for_retry(self, mark: int) -> None:
        """Back to where the request had been let in."""
        self.exchange.rewind_headers(mark)
        self.session = None
        self.translated = {}
        self.truncated_tokens = 0
        self.queued_s = 0.0

    def write_comment(self, text: str) -> None:
        """Tell whoever reads the stream something that is no event."""
        if not self.exchange.started:
            self.wait_announced = True
            self.exchange.start(200, "text/event-stream; charset=utf-8", {"cache-control": "no-cache"})
        self.exchange.write(b": %b\n\n" % " ".join(text.split()).encode("utf-8", "replace"))

    def add_header_or_comment(self, name: str, value: str) -> None:
        """In a header; in a comment, once the headers are gone."""
        if self.wait_announced:
            self.write_comment(f"{name}: {value}")
        else:
            self.exchange.add_header(name, value)

    @property
    def has_large_body(self) -> bool:
        """So much to read that it is done beside the event loop."""
        return len(self.exchange.body) > _LARGE_BYTES

    async def run_offloaded(self, work: Callable[..., T], *args: Any) -> T:
        """Do something whose cost grows with the body: here when it is small, else in a thread."""
        return await asyncio.to_thread(work, *args) if self.has_large_body else work(*args)
