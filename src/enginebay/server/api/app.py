"""The application behind the HTTP layer: routes, authenticates, retries, and records every request."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
import traceback
from functools import lru_cache

from enginebay.errors import Cancelled, Draining, EnginebayError, Forbidden, RateLimited
from enginebay.server.api.request_dialect import apply_dialect
from enginebay.server.api.routes import WEBSOCKET_ROUTES, find_route
from enginebay.server.auth.access_control import apply_cors, authenticate, check_local_admin, check_origin
from enginebay.server.auth.api_keys import Keyring
from enginebay.server.auth.client_identity import identify_client
from enginebay.server.encoding.error_responses import build_error_headers, get_error_row
from enginebay.server.http.exchange import CLIENT_CLOSED_REQUEST, Exchange
from enginebay.server.http.http_settings import BodyRule
from enginebay.server.requests.request_context import RequestContext
from enginebay.server.requests.retry_policy import should_retry
from enginebay.server.requests.server_context import Route, ServerContext
from enginebay.server.telemetry.server_log import RequestRecord
from enginebay.server.telemetry.tracing import (
    Tracer,
    build_request_attributes,
    build_response_attributes,
    build_span_name,
)

_DRAINING_RETRY_S, _LONGEST_RETRY_S = 0.005, 0.25  # before looking for the successor of a draining worker

_UNLOGGED_ENDPOINTS = ("health", "metrics", "docs", "admin.meters")  # polled by machines: they would fill the log

_find_route = lru_cache(maxsize=256)(find_route)


class App:
    """Implements `http.http_settings.HttpApplication`."""

    def __init__(
        self, context: ServerContext, keyring: Keyring, tracer: Tracer, *, keyless: bool, admin_token: str = ""
    ) -> None:
        self.context = context
        self.keyring = keyring
        self._tracer = tracer
        self.keyless = keyless  # no keys: only this host may connect, and no foreign web pages
        self._admin_token = admin_token  # for /admin without keys; empty: nobody may
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._ids = itertools.count(1)
        self._id_prefix = f"req_{secrets.token_hex(5)}"
        self._has_body_rules = any(route.has_body_rule for route in context.routes)
        context.run_exchange = self._run_exchange

    def handle(self, exchange: Exchange) -> asyncio.Task[None]:
        task = self._loop.create_task(self._handle(exchange))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _run_exchange(self, exchange: Exchange) -> None:
        """Handle a request that came within another. It has a task of its own, so that its client may cancel it."""
        await asyncio.wait([self.handle(exchange)])

    def find_body_rule(self, exchange: Exchange) -> BodyRule | None:
        if not self._has_body_rules:
            return None
        try:
            route = _find_route(exchange.method, exchange.path)
        except EnginebayError:
            return None
        if not route.has_body_rule:
            return None
        return BodyRule(getattr(self.context.config.limits, route.body_limit), route.body_limit, route.takes_form)

    def takes_websocket(self, path: str) -> bool:
        return ("WEBSOCKET", path) in WEBSOCKET_ROUTES

    def check_before_body(self, exchange: Exchange) -> tuple[int, str] | None:
        try:
            authenticate(self.keyring, exchange.headers, "any")
        except EnginebayError as error:
            return get_error_row(error).status, error.message
        return None

    def identify_client(self, exchange: Exchange) -> str:
        try:
            key = authenticate(self.keyring, exchange.headers, "any")
        except EnginebayError:
            key = None  # it is refused once the body is read
        return identify_client(key, exchange.peer).name

    def on_refused(self, status: int, exchange: Exchange | None) -> None:
        self.context.metrics.rejected.child(f"http_{status}").inc()
        if exchange is not None:
            apply_cors(exchange, self.context.config.cors_origins)

    async def _handle(self, exchange: Exchange) -> None:
        request_context = RequestContext(exchange, "unknown", f"{self._id_prefix}{next(self._ids):06x}")
        apply_dialect(request_context)
        try:
            check_origin(exchange, self.context.config.cors_origins, self.keyless)
            if exchange.method == "OPTIONS" and "access-control-request-method" in exchange.headers:
                _respond_preflight(exchange)
                return
            route = _find_route(exchange.method, exchange.path)
            request_context.endpoint = route.name
            await self._run_with_retries(request_context, route)
        except EnginebayError as error:
            self._respond_error(request_context, error)
        except asyncio.CancelledError:
            if not exchange.closed:
                request_context.error = Cancelled("the server is stopping")
                exchange.abort()
                raise
            request_context.error = Cancelled("the client closed the connection")
        except Exception as error:
            self.context.log.log_event(
                "unexpected error",
                level="error",
                request_id=request_context.id,
                error=repr(error),
                trace=traceback.format_exc(),
            )
            self._respond_error(request_context, EnginebayError("unexpected"))
        finally:
            exchange.release_body()
            self._record_request(request_context)

    async def _admit(self, request_context: RequestContext, route: Route) -> None:
        """Check the request's key and rate limits. Raise when it must not go on."""
        if route.scope is None:
            return
        if route.scope == "optional":
            request_context.is_anonymous = self._is_anonymous(request_context.exchange)
            return
        try:
            key = request_context.key = authenticate(self.keyring, request_context.exchange.headers, route.scope)
            if key is None and route.scope == "admin":
                check_local_admin(request_context.exchange, self._admin_token)
        except Forbidden as error:
            error.hint = f"{error.hint}; or {route.forbidden_hint}" if route.forbidden_hint else error.hint
            raise
        if key is None or (key.requests_per_minute is None and key.tokens_per_minute is None):
            return
        if not route.is_limited(request_context.exchange):
            return
        decision = await self.context.rate_limits.take(key)
        for name, value in decision.headers.items():
            request_context.exchange.add_header(name, value)
        if not decision.allowed:
            self.context.metrics.rate_limited.child(key.name).inc()
            raise RateLimited(
                "this API key reached its rate limit", f"try again in {decision.retry_after_s:.1f} s",
                retry_after_s=decision.retry_after_s,
            )  # fmt: skip

    def _is_anonymous(self, exchange: Exchange) -> bool:
        """Return whether the server has keys and the request presents none of them."""
        try:
            authenticate(self.keyring, exchange.headers, "any")
        except EnginebayError:
            return True
        return False

    async def _run_with_retries(self, request_context: RequestContext, route: Route) -> None:
        await self._admit(request_context, route)
        mark, delay_s = request_context.exchange.mark_headers(), _DRAINING_RETRY_S
        while True:
            try:
                await route.handler(self.context, request_context)
                return
            except EnginebayError as error:
                failed_index = request_context.variant_index
                if not should_retry(request_context, error):
                    if request_context.first_error is not None:
                        self._report_chain_failure(request_context, error, mark)
                    raise request_context.first_error or error from None
                draining = isinstance(error, Draining)  # the worker sleeps or has a successor: not a failure
                if not draining:
                    self._count_retry(request_context, error, fell_back=request_context.variant_index != failed_index)
            request_context.reset_for_retry(mark)
            if draining:
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, _LONGEST_RETRY_S)

    def _report_chain_failure(self, request_context: RequestContext, last: EnginebayError, mark: int) -> None:
        """Log the last engine's error: the client gets the first one's."""
        self.context.log.log_event(
            "every engine of the chain failed", level="warning", request_id=request_context.id, model=request_context.model,
            last=request_context.labels[1], error=last.kind, message=last.message,
        )  # fmt: skip
        request_context.exchange.rewind_headers(mark)
        request_context.fallback = ""

    def _count_retry(self, request_context: RequestContext, error: EnginebayError, fell_back: bool) -> None:
        if fell_back and request_context.catalog_entry is not None:
            self.context.metrics.fallbacks.child(
                request_context.catalog_entry.name,
                request_context.catalog_entry.connectors[request_context.variant_index].kind,
            ).inc()
        else:
            self.context.metrics.retries.child(*request_context.labels, error.kind).inc()

    def _respond_error(self, request_context: RequestContext, error: EnginebayError) -> None:
        request_context.error = error.with_traceback(None)  # a traceback would make a reference cycle
        error.__context__ = None  # so would that of the error it replaced
        form = request_context.error_form
        if request_context.background is not None:
            request_context.background.fail(error)
        if request_context.wait_announced and not request_context.exchange.closed:
            request_context.exchange.end(form.encode_event(error))
        elif request_context.exchange.started:
            request_context.exchange.abort()
        else:
            request_context.exchange.respond(
                form.get_status(error), form.encode_body(error), headers=build_error_headers(error)
            )

    def _record_request(self, request_context: RequestContext) -> None:
        exchange, session = request_context.exchange, request_context.session
        duration_s = time.perf_counter() - exchange.received_at
        left = isinstance(request_context.error, Cancelled) and exchange.closed
        status = CLIENT_CLOSED_REQUEST if left else exchange.status
        metrics = self.context.metrics
        labels = request_context.labels
        metrics.requests.child(*labels, request_context.endpoint, str(status)).inc()
        if request_context.error is not None:
            metrics.errors.child(*labels, request_context.error.kind).inc()
        if session is not None and request_context.queued_s:
            session.queue_time.observe(request_context.queued_s)
            key_name = request_context.key.name if request_context.key is not None else "(none)"
            metrics.key_queue_time.child(key_name).observe(request_context.queued_s)
        usage = request_context.usage
        if session is not None and (usage.prompt_tokens or usage.completion_tokens):
            session.duration.observe(duration_s)
            request_context.counted_tokens.count_usage(session, usage)
            if request_context.key is not None and request_context.key.tokens_per_minute is not None:
                self.context.rate_limits.charge(request_context.key, usage.prompt_tokens + usage.completion_tokens)
        trace_id = self._trace_request(request_context) if self._tracer.enabled and session is not None else ""
        if request_context.endpoint not in _UNLOGGED_ENDPOINTS or status >= 500:
            self._log_request(request_context, status, duration_s, trace_id)

    def _log_request(self, request_context: RequestContext, status: int, duration_s: float, trace_id: str) -> None:
        usage, error = request_context.usage, request_context.error
        has_usage = usage.prompt_tokens or usage.completion_tokens
        self.context.log.log_request(
            RequestRecord(
                request_id=request_context.id,
                endpoint=request_context.endpoint,
                status=status,
                duration_s=duration_s,
                model=request_context.model,
                engine=request_context.labels[1] if request_context.catalog_entry is not None else "",
                fallback=request_context.fallback,
                resumed=request_context.resumes or None,
                prompt_tokens=usage.prompt_tokens if has_usage else None,
                completion_tokens=usage.completion_tokens if has_usage else None,
                cached_tokens=usage.cached_tokens if has_usage else None,
                queue_s=request_context.queued_s or None,
                ttft_s=request_context.ttft_s,
                stream=request_context.stream or None,
                finish_reason=request_context.finish_reason,
                error=error.kind if error is not None else "",
                message=error.message if error is not None else "",
                key=request_context.key.name if request_context.key is not None else "",
                client=request_context.exchange.peer,
                trace_id=trace_id,
                prompt=str(request_context.prompt)
                if request_context.prompt is not None and self.context.config.log_prompts
                else "",
            )
        )

    def _trace_request(self, request_context: RequestContext) -> str:
        """Export the request as one span. Return its trace id."""
        assert request_context.session is not None
        attributes = build_request_attributes(
            request_context.endpoint, request_context.model, request_context.sampling, stream=request_context.stream
        )
        name = build_span_name(request_context.endpoint, request_context.model)
        parent = request_context.exchange.headers.get("traceparent")
        span = self._tracer.start(name, parent, attributes, _to_ns(request_context.started_at))
        if span is None:
            return ""
        span.add_event("left the queue", _to_ns(request_context.started_at + request_context.queued_s))
        if request_context.ttft_s is not None:
            span.add_event("first token", _to_ns(request_context.started_at + request_context.ttft_s))
        attributes = build_response_attributes(
            request_context.model, request_context.session.engine, request_context.id,
            prompt_tokens=request_context.usage.prompt_tokens, completion_tokens=request_context.usage.completion_tokens,
            cached_tokens=request_context.usage.cached_tokens,
            finish_reasons=(request_context.finish_reason,) if request_context.finish_reason else (),
        )  # fmt: skip
        span.end({**attributes, "http.response.status_code": request_context.exchange.status}, request_context.error)
        return span.trace_id

    async def wait_idle(self) -> None:
        """Wait for the running requests, also those in the background."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def close(self) -> None:
        """Cancel the running requests."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _to_ns(at_s: float) -> int:
    return int(at_s * 1e9)


def _respond_preflight(exchange: Exchange) -> None:
    """Allow every requested header: clients add their own."""
    requested_headers = exchange.headers.get("access-control-request-headers", "authorization, content-type")
    exchange.add_header("access-control-allow-methods", "GET, POST, DELETE")
    exchange.add_header("access-control-allow-headers", requested_headers[:2000])
    exchange.add_header("access-control-max-age", "600")
    exchange.respond(204, b"")
