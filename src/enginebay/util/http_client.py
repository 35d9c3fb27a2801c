"""The blocking HTTP client of the commands and the lab. Built on http.client, which imports fastest: ADR 19."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

from enginebay.util.http_policy import create_tls_context, find_proxy, join_authority

MAX_RESPONSE_BYTES = 64 << 20


class HttpResponse(NamedTuple):
    status: int
    body: bytes


class HttpClient:
    """One connection to one server, reopened as needed. Follows no redirect: it could take the credentials elsewhere."""

    def __init__(
        self,
        address: tuple[str, int],
        *,
        uses_tls: bool,
        timeout_s: float | None,
        max_bytes: int = MAX_RESPONSE_BYTES,
        direct: bool = False,  # without a proxy
    ) -> None:
        proxy = None if direct else find_proxy(*address, uses_tls)
        host, port = (proxy.host, proxy.port) if proxy else address
        self._max_bytes = max_bytes
        self._origin = f"http://{join_authority(*address)}" if proxy and not uses_tls else ""
        self._proxy_headers = proxy.headers if proxy and not uses_tls else {}
        self._connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
        if uses_tls:
            self._connection = http.client.HTTPSConnection(host, port, timeout=timeout_s, context=create_tls_context())
            if proxy:
                self._connection.set_tunnel(*address, dict(proxy.headers))

    def request(self, path: str, headers: Mapping[str, str], body: Mapping[str, Any] | None = None) -> HttpResponse:
        """GET the path, or POST the body as JSON. Raises `OSError` or `http.client.HTTPException`."""
        headers = {**self._proxy_headers, **headers}
        if body is not None:
            headers["Content-Type"] = "application/json"
        try:
            self._connection.request(
                "GET" if body is None else "POST",
                self._origin + path,
                None if body is None else json.dumps(body).encode(),
                headers,
            )
            response = self._connection.getresponse()
            content = response.read(self._max_bytes + 1)
            if len(content) > self._max_bytes:
                raise http.client.HTTPException(f"the response has more than {self._max_bytes} bytes")
            if response.length:
                raise http.client.IncompleteRead(content, response.length)
        except BaseException:
            self.close()
            raise
        return HttpResponse(response.status, content)

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
