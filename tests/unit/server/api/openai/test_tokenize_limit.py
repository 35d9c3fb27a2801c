"""/tokenize and /detokenize refuse what is far beyond the context, after a part of it."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from enginebay.config.sections.server_section import ServerConfig, ServerLimits
from enginebay.errors import InvalidRequest
from enginebay.fleet.routing.prompt_bounds import get_tokenize_limit
from enginebay.fleet.routing.prompt_encoder import PromptEncoder
from enginebay.server.api.openai.model_endpoints import detokenize, tokenize
from enginebay.server.http.exchange import Exchange
from tests.unit.fleet.routing.test_prompt_bounds import Words
from tests.unit.server.requests.test_retry_policy import make_request_context

LIMIT = get_tokenize_limit(1000)


@pytest.fixture
def session() -> Any:
    encoder: Any = PromptEncoder(None, None)  # type: ignore[arg-type]
    encoder.tokenizer = Words()
    encoder.tokenizer.vocabulary_size = 1 << 16
    encoder.tokenizer.decode = lambda ids, skip_special: "x" * len(ids)
    facts, spec = SimpleNamespace(context_length=1000), SimpleNamespace(renders=False)
    client = SimpleNamespace(prompt_encoder=encoder, facts=facts, spec=spec)
    return SimpleNamespace(client=client, limits=ServerLimits(), name="m")


answers: list[bytes] = []


@pytest.fixture(autouse=True)
def collect_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Exchange, "respond", lambda self, status, body: answers.append(body))


async def ask(endpoint: Any, session: Any, **fields: Any) -> Any:
    async def acquire_session(*_: Any) -> tuple[Any, None]:
        return session, None

    request_context = make_request_context()
    request_context.exchange.body = json.dumps({"model": "m", **fields}).encode()
    await endpoint(SimpleNamespace(acquire_session=acquire_session, config=ServerConfig()), request_context)
    return json.loads(answers.pop())


def test_the_limit_follows_the_context() -> None:
    assert get_tokenize_limit(512) == 65_536 and get_tokenize_limit(131_072) == 262_144


async def test_a_text_far_beyond_it_is_tokenized_in_part(session: Any) -> None:
    with pytest.raises(InvalidRequest, match=f"at least .* the maximum for this model is {LIMIT}") as refused:
        await ask(tokenize, session, prompt="word " * 700_000)
    assert refused.value.param == "prompt"
    assert session.client.prompt_encoder.tokenizer.longest <= 16_000


async def test_a_text_just_beyond_it_is_refused_and_one_within_it_is_not(session: Any) -> None:
    with pytest.raises(InvalidRequest, match=f"{LIMIT + 1} tokens"):
        await ask(tokenize, session, prompt="a " * LIMIT)
    assert (await ask(tokenize, session, prompt="a " * (LIMIT - 1)))["count"] == LIMIT


async def test_as_many_tokens_are_detokenized(session: Any) -> None:
    with pytest.raises(InvalidRequest, match=f"the maximum for this model is {LIMIT}") as refused:
        await ask(detokenize, session, tokens=[7] * (LIMIT + 1))
    assert refused.value.param == "tokens"
    assert await ask(detokenize, session, tokens=[7] * LIMIT)
