"""A small configuration of the fake engine, and one request to it."""

from __future__ import annotations

from typing import Any

import httpx2 as httpx

from tests.integration.server.abused_server import CHAT, HELLO
from tests.integration.server.bay_process import BayProcess
from tests.integration.server.raw_http import RawResponse

BODY = {"model": "toy", "messages": HELLO, "max_tokens": 4, "ignore_eos": True}


def build_config(
    fake: dict[str, object] | None = None, limits: dict[str, object] | None = None, **server: object
) -> Any:
    return {
        "models": {"toy": {"engine": "fake", "fake": fake or {}}},
        "server": {"log_level": "warning", "limits": limits or {}, **server},
    }


def build_bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def ask(server: BayProcess, headers: dict[str, str] | None = None, path: str = CHAT, **fields: Any) -> RawResponse:
    url = f"http://127.0.0.1:{server.port}{path}"
    found = httpx.post(url, json={**BODY, **fields}, headers=headers or {}, timeout=60)
    return RawResponse(found.status_code, dict(found.headers), found.content)
