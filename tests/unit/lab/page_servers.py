"""Small HTTP servers for tests."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@contextmanager
def serve_answers(answer: Callable[[str], tuple[int, bytes]]) -> Iterator[str]:
    """Serve a status and a body per path, for GET and POST. Yield the address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, body = answer(self.path)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


@contextmanager
def serve_pages(pages: Mapping[str, Any]) -> Iterator[str]:
    """Serve these paths as JSON, and 404 for all others."""

    def answer(path: str) -> tuple[int, bytes]:
        return 200 if path in pages else 404, json.dumps(pages.get(path, {"error": {"message": "not here"}})).encode()

    with serve_answers(answer) as url:
        yield url
