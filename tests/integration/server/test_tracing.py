"""A trace collector of our own, to see what really goes over the wire."""

from __future__ import annotations

import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import httpx2 as httpx
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.integration.server.bay_process import run_server


def test_a_request_is_sent_as_a_span_of_the_callers_trace() -> None:
    received: list[ExportTraceServiceRequest] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            received.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    collector = HTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=collector.serve_forever, daemon=True).start()
    environ = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.server_port}",
        "OTEL_BSP_SCHEDULE_DELAY": "100",
    }
    trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    with run_server("toy", engine="fake", environ=environ) as server:
        httpx.post(
            f"{server.url}/v1/chat/completions",
            json={"model": "toy", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, "ignore_eos": True},
            headers={"traceparent": f"00-{trace}-{parent}-01"},
            timeout=60,
        ).raise_for_status()
        deadline = time.monotonic() + 20
        while not received and time.monotonic() < deadline:
            time.sleep(0.05)
    collector.shutdown()
    [span] = received[0].resource_spans[0].scope_spans[0].spans
    attributes = {one.key: one.value for one in span.attributes}
    assert span.name == "chat toy" and span.trace_id.hex() == trace and span.parent_span_id.hex() == parent
    assert attributes["gen_ai.usage.output_tokens"].int_value == 5
    assert [event.name for event in span.events] == ["left the queue", "first token"]
    assert span.start_time_unix_nano < span.events[1].time_unix_nano <= span.end_time_unix_nano
