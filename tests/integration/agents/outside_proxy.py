"""A proxy that lets nothing through, and remembers which hosts were asked for: an agent on a local server needs none."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class OutsideProxy:
    def __init__(self, url: str) -> None:
        self._url = url
        self.hosts: list[str] = []

    @property
    def environ(self) -> dict[str, str]:
        names = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
        return {name: self._url for upper in names for name in (upper, upper.lower())}

    def take_hosts(self) -> list[str]:
        """Return the hosts that were asked for since the last call."""
        hosts, self.hosts = self.hosts, []
        return hosts


@contextmanager
def run_outside_proxy() -> Iterator[OutsideProxy]:
    class Handler(BaseHTTPRequestHandler):
        def do_CONNECT(self) -> None:
            proxy.hosts.append(self.path)
            self.send_error(403)

        do_GET = do_POST = do_CONNECT

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        proxy = OutsideProxy(f"http://127.0.0.1:{running.server_port}")
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield proxy
        running.shutdown()
