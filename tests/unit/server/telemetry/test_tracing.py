from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

from enginebay.contract import Sampling
from enginebay.errors import ContextOverflow
from enginebay.server.telemetry.tracing import (
    OtelTracer,
    Tracer,
    build_request_attributes,
    build_response_attributes,
    build_span_name,
    load_tracer,
    resolve_traces_endpoint,
)

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracer(exporter: InMemorySpanExporter) -> OtelTracer:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return OtelTracer(provider)


def only(exporter: InMemorySpanExporter) -> Any:
    (span,) = exporter.get_finished_spans()
    return span


def test_a_request_is_one_span_with_the_conventions_names(tracer: OtelTracer, exporter: InMemorySpanExporter) -> None:
    sampling = Sampling(temperature=0.5, max_tokens=64, stop=("END",), n=2, seed=0)
    attributes = build_request_attributes("chat", "smollm2", sampling, stream=True, address="127.0.0.1", port=8000)
    span = tracer.start(build_span_name("chat", "smollm2"), None, attributes)
    assert span is not None and not exporter.get_finished_spans()
    span.add_event("queued")
    span.add_event("first_token")
    span.end(
        build_response_attributes(
            "smollm2",
            "llamacpp 1.2",
            "chatcmpl-1",
            prompt_tokens=31,
            completion_tokens=0,
            finish_reasons=["stop", "length"],
        )
    )
    found = only(exporter)
    assert (found.name, found.kind, found.parent, found.status.status_code) == (
        "chat smollm2", SpanKind.SERVER, None, StatusCode.UNSET,
    )  # fmt: skip
    assert dict(found.attributes) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "enginebay",
        "gen_ai.request.model": "smollm2",
        "gen_ai.request.stream": True,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.max_tokens": 64,
        "gen_ai.request.seed": 0,
        "gen_ai.request.stop_sequences": ("END",),
        "gen_ai.request.choice.count": 2,
        "gen_ai.response.model": "smollm2",
        "gen_ai.response.id": "chatcmpl-1",
        "gen_ai.response.finish_reasons": ("stop", "length"),
        "gen_ai.usage.input_tokens": 31,
        "gen_ai.usage.output_tokens": 0,
        "enginebay.engine": "llamacpp 1.2",
        "server.address": "127.0.0.1",
        "server.port": 8000,
    }
    assert [event.name for event in found.events] == ["queued", "first_token"]
    assert found.events[0].timestamp <= found.events[1].timestamp <= found.end_time


def test_the_callers_trace_continues(tracer: OtelTracer, exporter: InMemorySpanExporter) -> None:
    span = tracer.start("chat smollm2", f"00-{TRACE}-{PARENT}-01")
    assert span is not None and span.trace_id == TRACE
    span.end()
    found = only(exporter)
    assert f"{found.context.trace_id:032x}" == TRACE
    assert f"{found.parent.span_id:016x}" == PARENT and found.parent.is_remote


def test_a_caller_that_does_not_sample_is_respected(tracer: OtelTracer) -> None:
    assert tracer.start("chat smollm2", f"00-{TRACE}-{PARENT}-00") is None


@pytest.mark.parametrize(
    "header", ["", "nonsense", f"00-{TRACE}", f"ff-{TRACE}-{PARENT}-01", f"00-{'0' * 32}-{PARENT}-01", "é\n"]
)
def test_a_malformed_header_begins_a_new_trace(tracer: OtelTracer, exporter: InMemorySpanExporter, header: str) -> None:
    span = tracer.start("chat smollm2", header)
    assert span is not None
    span.end()
    assert only(exporter).parent is None


def test_a_failure_has_its_kind_and_message(tracer: OtelTracer, exporter: InMemorySpanExporter) -> None:
    span = tracer.start("chat smollm2")
    assert span is not None
    span.end({"gen_ai.usage.input_tokens": 9}, ContextOverflow("the prompt is too long", "shorten it"))
    found = only(exporter)
    assert found.status.status_code is StatusCode.ERROR and found.status.description == "the prompt is too long"
    assert dict(found.attributes) == {"gen_ai.usage.input_tokens": 9, "error.type": "context_overflow"}


@pytest.mark.parametrize(("error", "name"), [("cancelled", "cancelled"), (KeyError("x"), "KeyError")])
def test_other_failures_have_a_short_name_too(
    tracer: OtelTracer, exporter: InMemorySpanExporter, error: Any, name: str
) -> None:
    span = tracer.start("chat smollm2")
    assert span is not None
    span.end(error=error)
    assert only(exporter).attributes["error.type"] == name


def test_a_request_that_is_not_sampled_has_no_span() -> None:
    assert OtelTracer(TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False)).start("chat smollm2") is None


def test_operations_are_named_as_the_conventions_do() -> None:
    assert [build_span_name(one, "m") for one in ("chat", "completions", "responses", "embeddings")] == [
        "chat m", "text_completion m", "chat m", "embeddings m",
    ]  # fmt: skip
    assert build_request_attributes("embeddings", "m") == {
        "gen_ai.operation.name": "embeddings",
        "gen_ai.provider.name": "enginebay",
        "gen_ai.request.model": "m",
    }


def test_without_an_endpoint_nothing_is_traced() -> None:
    for environ in ({}, {"OTEL_EXPORTER_OTLP_ENDPOINT": " "}):
        tracer = load_tracer(environ)
        assert type(tracer) is Tracer and not tracer.enabled and not tracer.note
        assert tracer.start("chat smollm2", f"00-{TRACE}-{PARENT}-01") is None
        tracer.close()


def test_the_sdk_can_be_turned_off() -> None:
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_SDK_DISABLED": "True"}
    assert not load_tracer(environ).enabled


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    tracer = load_tracer({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"})
    assert not tracer.enabled and "enginebay[tracing]" in tracer.note


def test_an_unsupported_protocol_is_named() -> None:
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
    assert "http/protobuf" in load_tracer(environ).note


def test_the_endpoint_is_found_as_the_standard_says() -> None:
    general, own = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
    assert resolve_traces_endpoint({general: "http://a:4318/"}) == "http://a:4318/v1/traces"
    assert resolve_traces_endpoint({general: "http://a:4318", own: "http://b/custom"}) == "http://b/custom"
    assert resolve_traces_endpoint({}) is None


@pytest.fixture
def collector() -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    """A collector that records what it receives."""
    got: list[tuple[str, bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", got
    server.shutdown()
    server.server_close()
    thread.join()


def test_spans_reach_a_collector(collector: tuple[str, list[tuple[str, bytes]]]) -> None:
    url, got = collector
    tracer = load_tracer({"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_SERVICE_NAME": "my-service"})
    assert tracer.enabled
    span = tracer.start("chat smollm2", None, build_request_attributes("chat", "smollm2"))
    assert span is not None
    span.end()
    tracer.close()
    ((path, body),) = got
    assert path == "/v1/traces"
    assert b"chat smollm2" in body and b"my-service" in body
