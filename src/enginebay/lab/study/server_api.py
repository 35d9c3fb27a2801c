"""Single requests to a server, outside of any measured window."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Mapping
from typing import Any

from enginebay.errors import EnginebayError
from enginebay.lab.loadgen.sender_task import TargetServer
from enginebay.util.http_client import MAX_RESPONSE_BYTES, HttpClient
from enginebay.util.http_policy import TRUST_HINT


class ServerUnusable(EnginebayError):
    """The server to measure does not respond as it should."""


class NotHttpServer(ServerUnusable):
    """The response is not HTTP."""


def open_client(target: TargetServer, timeout_s: float, max_bytes: int = MAX_RESPONSE_BYTES) -> HttpClient:
    """Open a client without a proxy: the load generator uses none, and a proxy would distort clocks."""
    return HttpClient(target.address, uses_tls=target.uses_tls, timeout_s=timeout_s, max_bytes=max_bytes, direct=True)


def request_json(
    target: TargetServer, path: str, body: Mapping[str, Any] | None = None, timeout_s: float | None = None
) -> tuple[int, Any]:
    """Send one request; return the status and the decoded JSON, or the text of any other body. Raise `ServerUnusable`."""
    try:
        with open_client(target, timeout_s or target.timeout_s) as client:
            status, raw = client.request(target.base_path + path, target.headers, body)
    except http.client.HTTPException as error:
        raise NotHttpServer(f"{target.url} does not speak HTTP: {error!r}"[:300], "check the address")
    except ssl.SSLCertVerificationError as error:
        raise ServerUnusable(f"the certificate of {target.url} is not trusted: {error.verify_message}", TRUST_HINT)
    except OSError as error:
        raise ServerUnusable(
            f"{target.url} does not respond: {error}", "check the address and that the server is running"
        )
    try:
        return status, json.loads(raw)
    except (ValueError, RecursionError):  # not JSON, or nested too deeply for any API
        return status, raw.decode("utf-8", "replace")


def get_json(target: TargetServer, path: str) -> Any:
    """Return the JSON of an endpoint. None: any status but 200."""
    status, value = request_json(target, path, timeout_s=30)
    if status == 401:
        raise ServerUnusable(f"{target.url} requires an API key", "set ENGINEBAY_API_KEY or OPENAI_API_KEY")
    return value if status == 200 else None


def list_model_names(target: TargetServer) -> list[str]:
    """Return the names of the models that the server lists."""
    body = get_json(target, "/v1/models")
    rows = body.get("data") if isinstance(body, dict) else None
    ids = [row.get("id") for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    return [name for name in ids if isinstance(name, str) and name]


def find_only_model(target: TargetServer) -> str:
    """Return the server's only model. Raise `ServerUnusable` if there is none, or several."""
    names = list_model_names(target)
    if not names:
        raise ServerUnusable(f"{target.url} does not list its models", "choose one with --model")
    if len(names) > 1:
        raise ServerUnusable(f"{target.url} has several models: {', '.join(names)}", "choose one with --model")
    return names[0]
