"""OpenTelemetry traces: one span per request. An extra: without it, or without an endpoint, nothing happens at no cost.

`pip install 'enginebay[tracing]'`, then set OTEL_EXPORTER_OTLP_ENDPOINT. The usual OTEL_* variables count: service name,
resource attributes, sampler, headers, timeouts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from enginebay import __version__
from enginebay.contract import Sampling
from enginebay.errors import EnginebayError

Attributes = Mapping[str, Any]

_ENDPOINT, _TRACES_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_PROTOCOL = "http/protobuf"
_MISSING = f"{_ENDPOINT} is set, but OpenTelemetry is not installed; run `pip install 'enginebay[tracing]'`"
# Our endpoint -> the convention's name of the operation.
_OPERATIONS = {"completions": "text_completion", "responses": "chat"}


class Span:
    """One request, while it is traced."""

    __slots__ = ("_span", "trace_id")

    def __init__(self, span: Any) -> None:
        self._span = span
        self.trace_id = f"{span.get_span_context().trace_id:032x}"  # for the log

    def add_event(self, name: str, at_ns: int | None = None) -> None:
        """A moment worth seeing: it left the queue, its first token came. In nanoseconds since 1970; None: now."""
        self._span.add_event(name, timestamp=at_ns)

    def end(self, attributes: Attributes | None = None, error: BaseException | str | None = None) -> None:
        """The request is over; with `error`, it failed."""
        from opentelemetry.trace import Status, StatusCode

        for name, value in (attributes or {}).items():
            self._span.set_attribute(name, value)
        if error is not None:
            self._span.set_attribute("error.type", get_error_type(error))
            message = error.message if isinstance(error, EnginebayError) else str(error)
            self._span.set_status(Status(StatusCode.ERROR, message))
        self._span.end()


class Tracer:
    """The one that traces nothing. Ask `enabled` before building attributes."""

    enabled = False

    def __init__(self, note: str = "") -> None:
        self.note = note  # why nothing is traced although it was asked for; for the log

    def start(
        self,
        name: str,
        traceparent: str | None = None,
        attributes: Attributes | None = None,
        at_ns: int | None = None,
    ) -> Span | None:
        """A span, child of the caller's when `traceparent` (W3C) names one. None: this request is not traced."""
        return None

    def close(self) -> None:
        """Send what waits."""


class OtelTracer(Tracer):
    """Sends spans from a thread of the SDK's own."""

    enabled = True

    def __init__(self, provider: Any) -> None:
        from opentelemetry.context import Context
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        super().__init__()
        self._provider = provider
        self._tracer = provider.get_tracer("enginebay", __version__)
        self._root_context = Context()
        self._kind = SpanKind.SERVER
        self._extract = TraceContextTextMapPropagator().extract

    def start(
        self,
        name: str,
        traceparent: str | None = None,
        attributes: Attributes | None = None,
        at_ns: int | None = None,
    ) -> Span | None:
        # A malformed header is ignored, as the standard wants: the request then begins a trace of its own.
        parent = self._extract({"traceparent": traceparent}, self._root_context) if traceparent else self._root_context
        span = self._tracer.start_span(name, parent, self._kind, attributes, start_time=at_ns)
        return Span(span) if span.is_recording() else None

    def close(self) -> None:
        self._provider.shutdown()


def load_tracer(environ: Mapping[str, str]) -> Tracer:
    """The tracer these variables ask for."""
    endpoint = resolve_traces_endpoint(environ)
    if endpoint is None or environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return Tracer()
    protocol = next((environ[name] for name in _PROTOCOLS if environ.get(name)), _PROTOCOL)
    if protocol != _PROTOCOL:
        return Tracer(f"traces are sent as {_PROTOCOL} only, not as {protocol}; set {_PROTOCOLS[1]}={_PROTOCOL}")
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        return Tracer(_MISSING)
    own = {"service.name": environ.get("OTEL_SERVICE_NAME") or "enginebay", "service.version": __version__}
    provider = TracerProvider(resource=Resource.create(own))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    return OtelTracer(provider)


def resolve_traces_endpoint(environ: Mapping[str, str]) -> str | None:
    """Where traces go: the variable for traces as it is, or the general one with the path of the standard."""
    if own := environ.get(_TRACES_ENDPOINT, "").strip():
        return own
    general = environ.get(_ENDPOINT, "").strip()
    return f"{general.rstrip('/')}/v1/traces" if general else None


def build_span_name(endpoint: str, model: str) -> str:
    return f"{get_operation_name(endpoint)} {model}"


def get_operation_name(endpoint: str) -> str:
    """chat, text_completion or embeddings, as the semantic conventions call them."""
    return _OPERATIONS.get(endpoint, endpoint)


def build_request_attributes(
    endpoint: str,
    model: str,
    sampling: Sampling | None = None,
    *,
    stream: bool | None = None,
    address: str | None = None,
    port: int | None = None,
) -> dict[str, Any]:
    """What a request asks for, under its names in the semantic conventions; unset stays unset."""
    asked: dict[str, Any] = {
        "gen_ai.operation.name": get_operation_name(endpoint),
        "gen_ai.provider.name": "enginebay",
        "gen_ai.request.model": model,
        "gen_ai.request.stream": stream,
        "server.address": address,
        "server.port": port,
    }
    if sampling is not None:
        asked |= {
            "gen_ai.request.temperature": sampling.temperature,
            "gen_ai.request.top_p": sampling.top_p,
            "gen_ai.request.top_k": sampling.top_k,
            "gen_ai.request.max_tokens": sampling.max_tokens,
            "gen_ai.request.frequency_penalty": sampling.frequency_penalty,
            "gen_ai.request.presence_penalty": sampling.presence_penalty,
            "gen_ai.request.seed": sampling.seed,
            "gen_ai.request.stop_sequences": list(sampling.stop) or None,
            "gen_ai.request.choice.count": sampling.n if sampling.n > 1 else None,
        }
    return {name: value for name, value in asked.items() if value is not None}


def build_response_attributes(
    model: str,
    engine: str,
    response_id: str,
    *,
    prompt_tokens: int | None = None,
    completion_tokens: int | None = None,
    cached_tokens: int | None = None,
    finish_reasons: Sequence[str] = (),
) -> dict[str, Any]:
    """What came of it, by the engine's own counts."""
    found: dict[str, Any] = {
        "gen_ai.response.model": model,
        "gen_ai.response.id": response_id,
        "gen_ai.response.finish_reasons": list(finish_reasons) or None,
        "gen_ai.usage.input_tokens": prompt_tokens,
        "gen_ai.usage.output_tokens": completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": cached_tokens,
        "enginebay.engine": engine,
    }
    return {name: value for name, value in found.items() if value is not None}


def get_error_type(error: BaseException | str) -> str:
    """A short name of few values: our errors have one, others have their class."""
    if isinstance(error, EnginebayError):
        return error.kind
    return error if isinstance(error, str) else type(error).__name__
