"""A small configuration of the fake engine, and one request to it."""

from __future__ import annotations

from typing import Any

import httpx2 as httpx

from tests.integration.server.battered import CHAT, HELLO
from tests.integration.server.raw_http import Answer
from tests.integration.server.serving import Server

BODY = {"model": "toy", "messages": HELLO, "max_tokens": 4, "ignore_eos": True}


def config_of(fake: dict[str, object] | None = None, limits: dict[str, object] | None = None, **server: object) -> Any:
    return {
        "models": {"toy": {"engine": "fake", "fake": fake or {}}},
        "server": {"log_level": "warning", "limits": limits or {}, **server},
    }


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def ask(server: Server, headers: dict[str, str] | None = None, path: str = CHAT, **fields: Any) -> Answer:
    url = f"http://127.0.0.1:{server.port}{path}"
    found = httpx.post(url, json={**BODY, **fields}, headers=headers or {}, timeout=60)
    return Answer(found.status_code, dict(found.headers), found.content)
