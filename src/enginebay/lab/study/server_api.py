"""Single questions to a server, outside of any measured window."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Mapping
from typing import Any

from enginebay.errors import EnginebayError
from enginebay.lab.loadgen.client_connection import TRUST_HINT
from enginebay.lab.loadgen.sender_task import TargetServer

_MAX_RESPONSE_BYTES = 64 << 20


class ServerUnusable(EnginebayError):
    """The server that is to be measured does not answer as it should."""


class NotHttpServer(ServerUnusable):
    """What it answers is not HTTP."""


def request_json(
    target: TargetServer, path: str, body: Mapping[str, Any] | None = None, timeout_s: float | None = None
) -> tuple[int, Any]:
    """One request; gives the status and the JSON, or the text where it is none. Raises `ServerUnusable`."""
    host, port = target.address
    kind = http.client.HTTPSConnection if target.uses_tls else http.client.HTTPConnection
    connection = kind(host, port, timeout=timeout_s or target.timeout_s)
    try:
        data = None if body is None else json.dumps(body).encode()
        headers = {**target.headers, **({"Content-Type": "application/json"} if data else {})}
        connection.request("GET" if data is None else "POST", target.base_path + path, body=data, headers=headers)
        answer = connection.getresponse()
        raw = answer.read(_MAX_RESPONSE_BYTES)
    except http.client.HTTPException as problem:
        raise NotHttpServer(f"{target.url} does not speak HTTP: {problem!r}"[:300], "is this the address of a server?")
    except ssl.SSLCertVerificationError as problem:
        raise ServerUnusable(f"the certificate of {target.url} is not trusted: {problem.verify_message}", TRUST_HINT)
    except OSError as problem:
        raise ServerUnusable(
            f"{target.url} does not answer: {problem}", "does the server run, and is this its address?"
        )
    finally:
        connection.close()
    try:
        return answer.status, json.loads(raw)
    except (ValueError, RecursionError):  # no JSON, or nested so deeply that it is none of an API
        return answer.status, raw.decode("utf-8", "replace")


def get_json(target: TargetServer, path: str) -> Any:
    """What the server says at a place; None when it has nothing there."""
    status, value = request_json(target, path, timeout_s=30)
    if status == 401:
        raise ServerUnusable(f"{target.url} wants an API key", "set ENGINEBAY_API_KEY or OPENAI_API_KEY")
    return value if status == 200 else None


def list_model_names(target: TargetServer) -> list[str]:
    """The models that the server lists; none where it has no list."""
    found = get_json(target, "/v1/models")
    rows = found.get("data") if isinstance(found, dict) else None
    ids = [row.get("id") for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    return [name for name in ids if isinstance(name, str) and name]


def find_only_model(target: TargetServer) -> str:
    """The model to measure when none was named: the only one there is. Raises `ServerUnusable`."""
    names = list_model_names(target)
    if not names:
        raise ServerUnusable(f"{target.url} does not list its models", "name one with --model")
    if len(names) > 1:
        raise ServerUnusable(f"{target.url} has several models: {', '.join(names)}", "name one with --model")
    return names[0]
