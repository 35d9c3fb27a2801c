"""Measure what stored state costs: responses with `store` false against a server without state, and with `store` true.

    python -m bench.server.state_cost

The plain path must cost nothing: with `store` false, no call to the store is made.
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import threading
import time
from typing import Any
from urllib.parse import urlsplit

from bench.server.bay_server import BayServer
from bench.server.server_process import exit_on_sigterm
from bench.server.thresholds import check_at_least

_SCRIPT = "abcdefghijklmnopqrstuvwxyz" * 10
_CONNECTIONS = 16
_PLAIN_SHARE, _STORED_SHARE = 0.97, 0.7


class _Client(threading.Thread):
    """Sends one request after the other on its connection."""

    def __init__(self, url: str, headers: dict[str, str], body: dict[str, Any], ends_at: float) -> None:
        super().__init__()
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
        self._headers, self._body, self._ends_at = headers, json.dumps(body).encode(), ends_at
        self.answered = 0

    def run(self) -> None:
        while time.perf_counter() < self._ends_at:
            self._connection.request("POST", "/v1/responses", self._body, self._headers)
            answer = self._connection.getresponse()
            data = answer.read()
            if answer.status != 200 or b'"status":"failed"' in data:
                raise SystemExit(f"{answer.status}: {data[:300]!r}")
            self.answered += 1


def measure(url: str, headers: dict[str, str], seconds: float, *, stream: bool, store: bool) -> float:
    """Return responses per second."""
    body = {
        "model": "toy", "input": "Say hi.", "max_output_tokens": 128 if stream else 8, "stream": stream, "store": store,
    }  # fmt: skip
    began = time.perf_counter()
    clients = [_Client(url, headers, body, began + seconds) for _ in range(_CONNECTIONS)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    return sum(client.answered for client in clients) / (time.perf_counter() - began)


def compare(rounds: int, seconds: float) -> bool:
    servers = {
        name: BayServer(name, "toy", "fake", {"script": _SCRIPT, **settings})
        for name, settings in (("off", {"server.state": "off"}), ("on", {}))
    }
    kinds = {"off": ("off", False), "plain": ("on", False), "stored": ("on", True)}
    good = True
    try:
        urls = {name: server.start() for name, server in servers.items()}
        for stream in (False, True):
            values: dict[str, list[float]] = {name: [] for name in kinds}
            for number in range(-1, rounds):
                for name in kinds if number % 2 else reversed(kinds):
                    server, store = kinds[name]
                    headers = {**servers[server].headers, "Content-Type": "application/json"}
                    value = measure(urls[server], headers, seconds, stream=stream, store=store)
                    if number >= 0:
                        values[name].append(value)
            what = "streams" if stream else "requests"
            for name, share in (("plain", _PLAIN_SHARE), ("stored", _STORED_SHARE)):
                ratios = [value / base for value, base in zip(values[name], values["off"], strict=True)]
                title = f"{what}, {name}, per s {statistics.mean(values[name]):,.0f} : {statistics.mean(values['off']):,.0f}"
                good &= check_at_least(share, title, ratios)
    finally:
        for server_ in servers.values():
            server_.stop()
    return good


def main() -> None:
    exit_on_sigterm()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    arguments = parser.parse_args()
    raise SystemExit(0 if compare(arguments.rounds, arguments.seconds) else 1)


if __name__ == "__main__":
    main()
