"""`truncate_prompt_tokens` does not lift the bound on what is tokenized."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from enginebay.config.sections.server_section import ServerConfig, ServerLimits
from enginebay.contract import GenerateRequest
from enginebay.errors import ContextOverflow
from enginebay.fleet.routing.prompt_encoder import PromptEncoder
from enginebay.server.api.openai.embeddings import create_embeddings
from enginebay.server.requests.run_generation import prepare_request
from tests.unit.fleet.routing.test_prompt_bounds import Words
from tests.unit.server.requests.test_retry_policy import make_request_context

LONG = "word " * 400_000


@pytest.fixture
def session() -> Any:
    encoder: Any = PromptEncoder(None, None)  # type: ignore[arg-type]
    encoder.tokenizer = Words()
    client = SimpleNamespace(
        prompt_encoder=encoder,
        facts=SimpleNamespace(context_length=1000),
        spec=SimpleNamespace(renders=False),
        negotiate=lambda _: {},
    )
    encoder.tokenizer.vocabulary_size = 1 << 16
    return SimpleNamespace(client=client, limits=ServerLimits(), supports=lambda _: True, name="m")


async def test_of_a_prompt(session: Any) -> None:
    with pytest.raises(ContextOverflow):
        await prepare_request(make_request_context(), session, GenerateRequest(text=LONG), truncate=10_000_000)
    assert session.client.prompt_encoder.tokenizer.total < 100_000


async def test_of_an_embedding(session: Any) -> None:
    async def acquire_session(*_: Any) -> tuple[Any, None]:
        return session, None

    request_context = make_request_context()
    body = {"model": "m", "input": LONG, "truncate_prompt_tokens": 10_000_000}
    request_context.exchange.body = json.dumps(body).encode()
    context: Any = SimpleNamespace(acquire_session=acquire_session, config=ServerConfig())
    with pytest.raises(ContextOverflow):
        await create_embeddings(context, request_context)
    assert session.client.prompt_encoder.tokenizer.total < 100_000
