"""The application behind the HTTP layer: finds the route, lets the right people in, answers, and writes it down."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
import traceback
from functools import lru_cache

from enginebay.errors import Cancelled, Draining, EnginebayError
from enginebay.server.access import admit, allow_page, authenticate, check_origin
from enginebay.server.answers.event_lines import in_lines
from enginebay.server.call import Call
from enginebay.server.context import Context
from enginebay.server.failures import error_body, error_headers, shown
from enginebay.server.http.exchange import CLIENT_CLOSED, Exchange
from enginebay.server.keys import Keyring
from enginebay.server.logs import RequestRecord
from enginebay.server.retrying import once_more
from enginebay.server.routes import Route, find_route
from enginebay.server.tracing import Tracer, request_attributes, response_attributes, span_name

_DOOR_S = 0.005  # before asking once more who takes requests instead of a worker that did not

_OFTEN_ASKED = ("health", "metrics", "docs", "admin.meters")  # by machines, which would fill the log

_find_route = lru_cache(maxsize=256)(find_route)


class App:
    """Implements `http.settings.Application`."""

    def __init__(self, context: Context, keyring: Keyring, tracer: Tracer, *, keyless: bool) -> None:
        self.context = context
        self.keyring = keyring
        self._tracer = tracer
        self.keyless = keyless  # on loopback without keys: whoever can reach us may ask, save for web pages
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._ids = itertools.count(1)
        self._id_prefix = f"req_{secrets.token_hex(5)}"

    def answer(self, exchange: Exchange) -> None:
        task = self._loop.create_task(self._answer(exchange))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def unwelcome(self, exchange: Exchange) -> tuple[int, str] | None:
        try:
            authenticate(self.keyring, exchange.headers, "any")
        except EnginebayError as error:
            return shown(error).status, error.message
        return None

    def refused(self, status: int, exchange: Exchange | None) -> None:
        self.context.metrics.rejected.child(f"http_{status}").inc()
        if exchange is not None:
            allow_page(exchange, self.context.config.cors_origins)

    async def _answer(self, exchange: Exchange) -> None:
        call = Call(exchange, "unknown", f"{self._id_prefix}{next(self._ids):06x}")
        try:
            check_origin(exchange, self.context.config.cors_origins, self.keyless)
            if exchange.method == "OPTIONS" and "access-control-request-method" in exchange.headers:
                _preflight(exchange)
                return
            route = _find_route(exchange.method, exchange.path)
            call.endpoint = route.name
            await self._routed(call, route)
        except EnginebayError as error:
            self._fail(call, error)
        except asyncio.CancelledError:
            if not exchange.closed:
                call.error = Cancelled("the server is stopping")
                exchange.abort()  # nobody will answer it: the client need not wait
                raise
            call.error = Cancelled("the client closed the connection")
        except Exception as error:
            self.context.log.event(
                "unexpected error", level="error", request_id=call.id, error=repr(error), trace=traceback.format_exc()
            )
            self._fail(call, EnginebayError("unexpected"))
        finally:
            self._record(call)

    async def _routed(self, call: Call, route: Route) -> None:
        await admit(self.context, self.keyring, call, route)
        mark = call.exchange.mark()
        while True:
            try:
                await route.handler(self.context, call)
                return
            except EnginebayError as error:
                asked = call.variant
                if not once_more(call, error):
                    if call.first_error is not None:
                        self._all_failed(call, error, mark)
                    raise call.first_error or error from None
                refused = isinstance(error, Draining)  # as it sleeps, or has a successor: that is no failure
                if not refused:
                    self._count_retry(call, error, fell_back=call.variant != asked)
            call.again(mark)
            if refused:
                await asyncio.sleep(_DOOR_S)

    def _all_failed(self, call: Call, last: EnginebayError, mark: int) -> None:
        """The first engine's error is the answer; what the last one said is in the log."""
        self.context.log.event(
            "no engine of the chain answered", level="warning", request_id=call.id, model=call.model,
            last=call.labels[1], error=last.kind, message=last.message,
        )  # fmt: skip
        call.exchange.rewind(mark)
        call.fallback = ""

    def _count_retry(self, call: Call, error: EnginebayError, fell_back: bool) -> None:
        if fell_back and call.offer is not None:
            self.context.metrics.fallbacks.child(call.offer.name, call.offer.sessions[call.variant].kind).inc()
        else:
            self.context.metrics.retries.child(*call.labels, error.kind).inc()

    def _fail(self, call: Call, error: EnginebayError) -> None:
        call.error = error.with_traceback(None)  # its frames hold the call, and the call would hold them
        if call.told and not call.exchange.closed:
            call.exchange.end(in_lines(b"data: %b\n\n" % error_body(error)))
        elif call.exchange.started:
            call.exchange.abort()  # nothing sensible can follow half an answer
        else:
            call.exchange.respond(shown(error).status, error_body(error), headers=error_headers(error))

    # Writing it down

    def _record(self, call: Call) -> None:
        exchange, served = call.exchange, call.served
        duration_s = time.perf_counter() - exchange.received
        status = CLIENT_CLOSED if isinstance(call.error, Cancelled) and exchange.closed else exchange.status
        metrics = self.context.metrics
        labels = call.labels
        metrics.requests.child(*labels, call.endpoint, str(status)).inc()
        if call.error is not None:
            metrics.errors.child(*labels, call.error.kind).inc()
        if served is not None and call.queued_s:
            served.queue_time.observe(call.queued_s)
        usage = call.usage
        if served is not None and (usage.prompt_tokens or usage.completion_tokens):
            served.duration.observe(duration_s)
            served.prompt_tokens.inc(usage.prompt_tokens)
            served.cached_tokens.inc(usage.cached_tokens)
            served.completion_tokens.inc(usage.completion_tokens)
            if call.key is not None and call.key.tokens_per_minute is not None:
                self.context.rates.charge(call.key, usage.prompt_tokens + usage.completion_tokens)
        trace_id = self._trace(call) if self._tracer.enabled and served is not None else ""
        if call.endpoint not in _OFTEN_ASKED or status >= 500:
            self._log(call, status, duration_s, trace_id)

    def _log(self, call: Call, status: int, duration_s: float, trace_id: str) -> None:
        usage, error = call.usage, call.error
        counted = usage.prompt_tokens or usage.completion_tokens
        self.context.log.request(
            RequestRecord(
                request_id=call.id,
                endpoint=call.endpoint,
                status=status,
                duration_s=duration_s,
                model=call.model,
                engine=call.labels[1] if call.offer is not None else "",
                fallback=call.fallback,
                prompt_tokens=usage.prompt_tokens if counted else None,
                completion_tokens=usage.completion_tokens if counted else None,
                cached_tokens=usage.cached_tokens if counted else None,
                queue_s=call.queued_s or None,
                ttft_s=call.ttft_s,
                stream=call.stream or None,
                finish_reason=call.finish_reason,
                error=error.kind if error is not None else "",
                message=error.message if error is not None else "",
                key=call.key.name if call.key is not None else "",
                client=call.exchange.peer,
                trace_id=trace_id,
                prompt=str(call.prompt) if call.prompt is not None and self.context.config.log_prompts else "",
            )
        )

    def _trace(self, call: Call) -> str:
        """Send the request as one span, written when all of it is known; gives back the id of its trace."""
        assert call.served is not None
        asked = request_attributes(call.endpoint, call.model, call.sampling, stream=call.stream)
        name, parent = span_name(call.endpoint, call.model), call.exchange.headers.get("traceparent")
        span = self._tracer.start(name, parent, asked, _ns(call.started))
        if span is None:
            return ""
        span.event("left the queue", _ns(call.started + call.queued_s))
        if call.ttft_s is not None:
            span.event("first token", _ns(call.started + call.ttft_s))
        found = response_attributes(
            call.model, call.served.engine, call.id,
            prompt_tokens=call.usage.prompt_tokens, completion_tokens=call.usage.completion_tokens,
            cached_tokens=call.usage.cached_tokens,
            finish_reasons=(call.finish_reason,) if call.finish_reason else (),
        )  # fmt: skip
        span.end({**found, "http.response.status_code": call.exchange.status}, call.error)
        return span.trace_id

    # The end

    async def close(self) -> None:
        """Cancel what still runs."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _ns(at_s: float) -> int:
    return int(at_s * 1e9)


def _preflight(exchange: Exchange) -> None:
    """A page may send whatever it likes, once its origin is allowed: clients add headers of their own."""
    asked = exchange.headers.get("access-control-request-headers", "authorization, content-type")
    exchange.header("access-control-allow-methods", "GET, POST")
    exchange.header("access-control-allow-headers", asked[:2000])
    exchange.header("access-control-max-age", "600")
    exchange.respond(204, b"")
