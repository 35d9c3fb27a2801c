"""OpenTelemetry traces: one span per request. Optional: without the extra or an endpoint, tracing costs nothing.

`pip install 'enginebay[tracing]'`, then set OTEL_EXPORTER_OTLP_ENDPOINT. The usual OTEL_* variables apply: service name,
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
# Endpoint -> operation name in the semantic conventions.
_OPERATIONS = {
    "completions": "text_completion", "responses": "chat", "messages": "chat", "ollama.chat": "chat", "ollama.generate": "text_completion",
    "ollama.embed": "embeddings", "ollama.embeddings": "embeddings",
}  # fmt: skip


class Span:
    """The span of one request."""

    __slots__ = ("_span", "trace_id")

    def __init__(self, span: Any) -> None:
        self._span = span
        self.trace_id = f"{span.get_span_context().trace_id:032x}"  # for the log

    def add_event(self, name: str, at_ns: int | None = None) -> None:
        """Add an event, such as the first token. `at_ns`: nanoseconds since 1970; None: now."""
        self._span.add_event(name, timestamp=at_ns)

    def end(self, attributes: Attributes | None = None, error: BaseException | str | None = None) -> None:
        """End the span; with `error`, mark it as failed."""
        from opentelemetry.trace import Status, StatusCode

        for name, value in (attributes or {}).items():
            self._span.set_attribute(name, value)
        if error is not None:
            self._span.set_attribute("error.type", get_error_type(error))
            message = error.message if isinstance(error, EnginebayError) else str(error)
            self._span.set_status(Status(StatusCode.ERROR, message))
        self._span.end()


class Tracer:
    """A tracer that does nothing. Check `enabled` before building attributes."""

    enabled = False

    def __init__(self, note: str = "") -> None:
        self.note = note  # for the log: why tracing is off although it is configured

    def start(
        self, name: str, traceparent: str | None = None, attributes: Attributes | None = None, at_ns: int | None = None
    ) -> Span | None:
        """Start a span, as a child of `traceparent` (W3C) if given. Return None if this request is not traced."""
        return None

    def close(self) -> None:
        """Send the pending spans."""


class OtelTracer(Tracer):
    """Sends spans from the SDK's own thread."""

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
        self, name: str, traceparent: str | None = None, attributes: Attributes | None = None, at_ns: int | None = None
    ) -> Span | None:
        # The standard requires a malformed header to be ignored: the request then starts a new trace.
        parent = self._extract({"traceparent": traceparent}, self._root_context) if traceparent else self._root_context
        span = self._tracer.start_span(name, parent, self._kind, attributes, start_time=at_ns)
        return Span(span) if span.is_recording() else None

    def close(self) -> None:
        self._provider.shutdown()


def load_tracer(environ: Mapping[str, str]) -> Tracer:
    """Return the tracer that the environment configures."""
    endpoint = resolve_traces_endpoint(environ)
    if endpoint is None or environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return Tracer()
    protocol = next((environ[name] for name in _PROTOCOLS if environ.get(name)), _PROTOCOL)
    if protocol != _PROTOCOL:
        return Tracer(f"the trace protocol {protocol} is not supported; set {_PROTOCOLS[1]}={_PROTOCOL}")
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        return Tracer(_MISSING)
    service = {"service.name": environ.get("OTEL_SERVICE_NAME") or "enginebay", "service.version": __version__}
    provider = TracerProvider(resource=Resource.create(service))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    return OtelTracer(provider)


def resolve_traces_endpoint(environ: Mapping[str, str]) -> str | None:
    """Return the traces endpoint as given, else the general endpoint with the standard path."""
    if endpoint := environ.get(_TRACES_ENDPOINT, "").strip():
        return endpoint
    general = environ.get(_ENDPOINT, "").strip()
    return f"{general.rstrip('/')}/v1/traces" if general else None


def build_span_name(endpoint: str, model: str) -> str:
    return f"{get_operation_name(endpoint)} {model}"


def get_operation_name(endpoint: str) -> str:
    """Return the operation name in the semantic conventions: chat, text_completion or embeddings."""
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
    """Return the request's attributes, named by the semantic conventions. Unset parameters are left out."""
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": get_operation_name(endpoint),
        "gen_ai.provider.name": "enginebay",
        "gen_ai.request.model": model,
        "gen_ai.request.stream": stream,
        "server.address": address,
        "server.port": port,
    }
    if sampling is not None:
        attributes |= {
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
    return {name: value for name, value in attributes.items() if value is not None}


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
    """Return the response's attributes, with the engine's own token counts."""
    attributes: dict[str, Any] = {
        "gen_ai.response.model": model,
        "gen_ai.response.id": response_id,
        "gen_ai.response.finish_reasons": list(finish_reasons) or None,
        "gen_ai.usage.input_tokens": prompt_tokens,
        "gen_ai.usage.output_tokens": completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": cached_tokens,
        "enginebay.engine": engine,
    }
    return {name: value for name, value in attributes.items() if value is not None}


def get_error_type(error: BaseException | str) -> str:
    """Return a low-cardinality name: the kind of our own errors, the class of others."""
    if isinstance(error, EnginebayError):
        return error.kind
    return error if isinstance(error, str) else type(error).__name__
