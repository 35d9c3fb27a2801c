"""This server process's session with a model on one worker."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from enginebay.config.sections.server_section import ServerLimits
from enginebay.contract import Support
from enginebay.contract.engine_messages import Usage
from enginebay.fleet.routing.model_client import ModelClient
from enginebay.fleet.routing.output_markers import find_marker_ids, restore_markers, select_reasoning_format
from enginebay.server.sessions.admission_queue import AdmissionQueue
from enginebay.server.telemetry.server_metrics import MetricValue, ServerMetrics
from enginebay.text.tool_calls import TOOL_CALL_FORMATS, ToolCallFormat, detect_format

if TYPE_CHECKING:
    from enginebay.fleet.routing.replica_router import RouteReason
    from enginebay.server.sessions.replica_pool import ReplicaPool


class CountedTokens:
    """The tokens of one request that its model's metrics already contain.

    Tokens count as they leave, the rest when the request ends. A retry counts only what exceeds the attempts before it,
    so that the metrics add up to the usage.
    """

    __slots__ = ("cached", "completion", "prompt")

    def __init__(self) -> None:
        self.prompt = self.cached = self.completion = 0

    def count_prompt(self, session: ModelSession, total: int) -> None:
        """Count the prompt, of which `total` tokens are known."""
        if total > self.prompt:
            session.prompt_tokens.inc(total - self.prompt)
            self.prompt = total

    def count_completion(self, session: ModelSession, total: int) -> None:
        """Count the new tokens of a completion that has `total` so far."""
        if total > self.completion:
            session.completion_tokens.inc(total - self.completion)
            self.completion = total

    def count_usage(self, session: ModelSession, usage: Usage) -> None:
        """Count what the final usage has and no flush had."""
        self.count_prompt(session, usage.prompt_tokens)
        self.count_completion(session, usage.completion_tokens)
        if usage.cached_tokens > self.cached:
            session.cached_tokens.inc(usage.cached_tokens - self.cached)
            self.cached = usage.cached_tokens
        if session.pool is not None:
            session.count_replica_tokens(usage)


class ModelSession:
    """A session with one worker, and the model's metrics. Metrics are bound once: a request only adds to them."""

    def __init__(
        self, client: ModelClient, limits: ServerLimits, metrics: ServerMetrics, queue: AdmissionQueue
    ) -> None:
        handle, facts = client.handle, client.facts
        self.client = client
        self.limits = limits
        self.name = handle.model
        self.engine = f"{facts.kind} {facts.version}"
        self.engine_header = f"x-enginebay-engine: {self.engine}\r\n".encode("ascii", "replace")
        self.last_token_at = float("-inf")  # when the engine last generated a token for this process
        self.probe: asyncio.Future[Any] | None = None  # a liveness check of the engine in progress
        self.queue = queue
        self.draining = False  # the worker accepts no more requests
        self.replica = handle.replica
        self.address = handle.address
        self.pool: ReplicaPool | None = None  # the replicas among which a request is routed
        self.reserved = False  # for a suspect: see `CrashGuard`
        self.in_flight = 0  # requests of this process that were routed to it
        self.passed_control = False  # the engine answers, so that a death in a trial is the suspect's fault
        self.sampling_defaults = {name: value for name, value in handle.sampling.items() if self.supports(name)}
        self.tool_format = _select_tool_format(client)
        self.reasoning_format = select_reasoning_format(client)
        thought_markers = self.reasoning_format.markers if self.reasoning_format is not None else ()
        self.markers = find_marker_ids(client.prompt_encoder, (*self.tool_format.markers, *thought_markers))
        self._call_ids = itertools.count(1)
        self._call_prefix = f"call_{secrets.token_hex(6)}"
        labels = (self.name, facts.kind)
        self.labels = labels
        self.ttft = metrics.time_to_first_token.child(*labels)
        self.inter_token = metrics.inter_token_latency.child(*labels)
        self.queue_time = metrics.queue_time.child(*labels)
        self.duration = metrics.request_duration.child(*labels)
        self.prompt_tokens = metrics.prompt_tokens.child(*labels)
        self.cached_tokens = metrics.cached_tokens.child(*labels)
        self.completion_tokens = metrics.completion_tokens.child(*labels)
        self._metrics = metrics
        for gauge in (metrics.requests_running, metrics.requests_waiting):
            gauge.child(*labels)  # reported even before the first request

    @property
    def is_live(self) -> bool:
        """Whether its worker accepts requests, as far as known."""
        return not self.draining and not self.client.client.broken

    @property
    def is_routed(self) -> bool:
        """Whether requests are routed to it."""
        return self.is_live and not self.reserved and not self.client.client.disconnected

    def count_route(self, reason: RouteReason) -> None:
        self._metrics.replica_requests.child(*self.labels, self.replica, reason).inc()

    def count_replica_tokens(self, usage: Usage) -> None:
        """Count a finished request's prompt, and how much of it this replica had cached."""
        self._metrics.replica_prompt_tokens.child(*self.labels, self.replica).inc(usage.prompt_tokens)
        self._metrics.replica_cached_tokens.child(*self.labels, self.replica).inc(usage.cached_tokens)

    @property
    def running_gauge(self) -> MetricValue:
        """Looked up each time: `drop_idle_children` may drop it while it is 0."""
        return self._metrics.requests_running.child(*self.labels)

    @property
    def waiting_gauge(self) -> MetricValue:
        return self._metrics.requests_waiting.child(*self.labels)

    def next_call_id(self) -> str:
        """Return a unique id for a tool call."""
        return f"{self._call_prefix}{next(self._call_ids):04x}"

    def supports(self, parameter: str) -> bool:
        """Return whether the engine supports this parameter, at its version and with this model."""
        declared = self.client.spec.request.get(parameter)
        refused = declared is None or declared.support is Support.REFUSES
        return not refused and parameter not in self.client.facts.refused

    def restore_markers(self, text: str, token_ids: Sequence[int]) -> str:
        """Return the tokens' text including markers of tool calls and thoughts, which engines omit as special tokens."""
        markers = self.markers
        return restore_markers(self.client.prompt_encoder, markers, text, token_ids) if markers else text


def _select_tool_format(client: ModelClient) -> ToolCallFormat:
    """Return the configured format, or the one detected from the model's chat template."""
    configured = client.handle.tool_format
    if client.spec.renders:
        return TOOL_CALL_FORMATS["hermes"]  # the format in which such engines write tool calls as text
    return TOOL_CALL_FORMATS[detect_format(client.prompt_encoder.chat_template) if configured == "auto" else configured]
