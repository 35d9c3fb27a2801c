"""The state of one API request: its key, its model, its outcome."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from enginebay.contract import Sampling
from enginebay.contract.engine_messages import Usage
from enginebay.errors import EnginebayError, Overloaded
from enginebay.server.auth.api_keys import ApiKey
from enginebay.server.auth.client_identity import identify_client
from enginebay.server.encoding.error_responses import OPENAI_ERRORS, ErrorForm, make_refusal
from enginebay.server.encoding.thought_listener import ThoughtLimits
from enginebay.server.http.exchange import Exchange
from enginebay.server.http.refusal import Refusal
from enginebay.server.sessions.admission_queue import AdmissionQueue, QueueClient
from enginebay.server.sessions.model_catalog import CatalogEntry
from enginebay.server.sessions.model_session import CountedTokens, ModelSession

if TYPE_CHECKING:
    from enginebay.server.api.openai.responses_api.background import BackgroundRun
    from enginebay.server.requests.crash_guard import CrashGuard
    from enginebay.server.requests.server_context import ServerContext

_LARGE_BYTES = 32 << 10  # takes milliseconds to parse
T = TypeVar("T")

_SAFE_ID = re.compile(r"^[A-Za-z0-9._:\-]{1,128}$")


class RequestContext:
    """Filled in as the request proceeds; `App` reads it once at the end."""

    __slots__ = (
        "background",
        "cache_key",
        "catalog_entry",
        "counted_tokens",
        "crash_guard",
        "endpoint",
        "error",
        "error_form",
        "exchange",
        "fallback",
        "finish_reason",
        "first_error",
        "history_bytes",
        "id",
        "ignored",
        "is_anonymous",
        "key",
        "labels",
        "lora",
        "model",
        "prompt",
        "queued_s",
        "resumes",
        "sampling",
        "server",
        "session",
        "started_at",
        "stream",
        "takes_comments",
        "text_cut",
        "thought_limits",
        "tokenizer_queue",
        "translated",
        "truncated_tokens",
        "ttft_s",
        "usage",
        "variant",
        "variant_index",
        "wait_announced",
        "wait_deadline",
        "worker_deaths",
    )  # fmt: skip

    def __init__(self, exchange: Exchange, endpoint: str, generated_id: str) -> None:
        client_id = exchange.headers.get("x-request-id", "")
        self.exchange = exchange
        self.endpoint = endpoint
        self.id = client_id if _SAFE_ID.match(client_id) else generated_id
        self.started_at = time.time() - (time.perf_counter() - exchange.received_at)  # when it was received
        self.key: ApiKey | None = None
        self.is_anonymous = False  # without a key, where one is optional and the server has some
        self.model = ""
        self.catalog_entry: CatalogEntry | None = None
        self.labels = ("(none)", "(none)")  # model and engine
        self.session: ModelSession | None = None
        self.variant = ""  # the name of the model on the engine in use
        self.crash_guard: CrashGuard | None = None
        self.variant_index = 0  # which engine of the model's chain is in use
        self.fallback = ""  # why it is not the first one
        self.first_error: EnginebayError | None = None  # the error of the chain's first engine
        self.worker_deaths = 0  # workers that died during this request
        self.resumes = 0  # times that another worker continued the response
        self.server: ServerContext | None = None
        self.wait_deadline: float | None = None  # when the wait for the model times out
        self.wait_announced = False  # the stream started with progress comments
        self.takes_comments = True  # a stream of server-sent events may have some
        self.lora: str | None = None
        self.cache_key = ""  # `prompt_cache_key`: requests that share it likely share a prefix
        self.usage = Usage()
        self.counted_tokens = CountedTokens()  # of all attempts
        self.queued_s = 0.0  # from its receipt until it left the queue
        self.ttft_s: float | None = None
        self.stream = False
        self.finish_reason = ""
        self.error: EnginebayError | None = None
        self.error_form: ErrorForm = OPENAI_ERRORS
        self.prompt: Any = None
        self.sampling: Sampling | None = None
        self.translated: dict[str, str] = {}  # parameter: what the engine does instead
        self.ignored: dict[str, str] = {}  # parameter that cannot change the response: why
        self.thought_limits: ThoughtLimits | None = None  # of a chat whose thought and answer are planned apart
        self.truncated_tokens = 0  # prompt tokens dropped by truncate_prompt_tokens
        self.text_cut = False  # more were dropped, before they were counted
        self.history_bytes = 0  # of stored items that the prompt begins with
        self.background: BackgroundRun | None = None  # once the client has its answer
        self.tokenizer_queue: AdmissionQueue | None = None  # for large bodies
        exchange.add_header("x-request-id", self.id)

    @property
    def client(self) -> QueueClient:
        """Who gets a fair share: the key, or the address."""
        return identify_client(self.key, self.exchange.peer)

    @property
    def can_still_retry(self) -> bool:
        """Whether no output has been sent, so that a retry is invisible to the client. Progress comments do not count."""
        return not self.exchange.started or self.wait_announced

    def reset_for_retry(self, mark: int) -> None:
        """Restore the state right after admission. `mark`: the headers to keep."""
        self.exchange.rewind_headers(mark)
        self.session = None
        self.translated = {}
        self.ignored = {}
        self.thought_limits = None
        self.history_bytes = 0
        self.truncated_tokens = 0
        self.text_cut = False
        self.queued_s = 0.0

    def write_comment(self, text: str) -> None:
        """Write an SSE comment, or a ping where there are none. Start the stream if needed."""
        if not self.takes_comments:
            self.exchange.ping()
            return
        if not self.exchange.started:
            self.wait_announced = True
            self.exchange.start(200, "text/event-stream; charset=utf-8", {"cache-control": "no-cache"})
        self.exchange.write(b": %b\n\n" % " ".join(text.split()).encode("utf-8", "replace"))

    def add_header_or_comment(self, name: str, value: str) -> None:
        """Add a header, or write an SSE comment if the headers have been sent."""
        if self.wait_announced:
            self.write_comment(f"{name}: {value}")
        else:
            self.exchange.add_header(name, value)

    @property
    def has_large_body(self) -> bool:
        """Whether parsing the body would block the event loop for too long."""
        return self.prompt_bytes > _LARGE_BYTES

    @property
    def prompt_bytes(self) -> int:
        """The size of the body, and of what it refers to."""
        return len(self.exchange.body) + self.history_bytes

    def add_history(self, size: int) -> None:
        """Count stored items that the request brings into memory with its body. Raise if there is no room for them."""
        self.history_bytes += size
        try:
            self.exchange.hold_bytes(self.prompt_bytes)
        except Refusal as refusal:
            error = make_refusal(refusal.status, refusal.message, refusal.limit)
            if isinstance(error, Overloaded):
                error.of_model = False  # another engine has no more room for it
            raise error from None

    async def run_in_thread_if_large(self, work: Callable[..., T], *args: Any) -> T:
        """Run work whose cost grows with the body: inline when the body is small, else in a thread."""
        return await asyncio.to_thread(work, *args) if self.has_large_body else work(*args)
