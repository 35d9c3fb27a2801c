"""Large bodies are parsed in a thread, small ones on the event loop."""

from __future__ import annotations

import json
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from enginebay.config.sections.server_section import ServerConfig, ServerLimits
from enginebay.errors import InvalidRequest
from enginebay.server.api.openai import completions, embeddings
from tests.unit.server.requests.test_retry_policy import make_request_context


class Context:
    """Has one model with a vocabulary of 10 tokens."""

    config = ServerConfig()

    def __init__(self) -> None:
        client = SimpleNamespace(prompt_encoder=SimpleNamespace(vocabulary_size=10))
        self.session = SimpleNamespace(limits=ServerLimits(), client=client, supports=lambda _: True)

    async def acquire_session(self, *_: Any, **__: Any) -> tuple[Any, None]:
        return self.session, None


@pytest.mark.parametrize("size", [10, 50_000])
@pytest.mark.parametrize(
    ("endpoint", "module", "field"),
    [(completions.create_completion, completions, "prompt"), (embeddings.create_embeddings, embeddings, "input")],
)
async def test_token_ids_of_large_bodies_are_parsed_in_a_thread(
    endpoint: Any, module: Any, field: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []
    parse_prompts = module.parse_prompts

    def read(*args: Any) -> Any:
        threads.append(threading.get_ident())
        return parse_prompts(*args)

    monkeypatch.setattr(module, "parse_prompts", read)
    request_context = make_request_context()
    request_context.exchange.body = json.dumps({"model": "m", field: [1] * size + [99]}).encode()
    with pytest.raises(InvalidRequest, match="outside 0 to 9"):
        await endpoint(Context(), request_context)
    assert (threads[0] != threading.get_ident()) is (size > 1000)
