"""Where prompts are tokenized: long ones, and many that are long together, beside the event loop."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from enginebay.contract import GenerateRequest
from enginebay.fleet.routing.prompt_encoder import PromptEncoder


class Letters:
    """A tokenizer that remembers in which threads it was used."""

    def __init__(self) -> None:
        self.threads: set[int] = set()

    def encode_batch(self, texts: Any, add_special: bool = True) -> list[list[int]]:
        self.threads.add(threading.get_ident())
        return [[0] * add_special + [ord(letter) for letter in text] for text in texts]


@pytest.fixture
def prompts() -> Any:
    found: Any = PromptEncoder(None, None)  # type: ignore[arg-type]
    found.tokenizer = Letters()
    return found


def beside(prompts: Any) -> bool:
    [used] = prompts.tokenizer.threads
    return bool(used != threading.get_ident())


@pytest.mark.parametrize(
    ("texts", "away"),
    [(["ab"], False), (["ab"] * 100, False), (["a" * 8001], True), (["a" * 7900] * 2, True), (["ab"] * 5000, True)],
)
async def test_what_is_long_together_is_tokenized_beside_the_event_loop(
    prompts: Any, texts: list[str], away: bool
) -> None:
    found = await prompts.encode_all(texts)
    assert found == [(0, *map(ord, text)) for text in texts] and beside(prompts) is away


@pytest.mark.parametrize("large", [True, False])
async def test_a_prompt_of_a_large_body_is_one_of_many(prompts: Any, large: bool) -> None:
    ids = await prompts.token_ids(GenerateRequest(text="ab"), large=large)
    assert ids == (0, 97, 98) and beside(prompts) is large


async def test_where_the_engine_alone_can_tokenize_it_is_asked_for_each() -> None:
    class Engine:
        async def tokenize(self, text: str, add_special: bool = True) -> list[int]:
            return [len(text), add_special]

    prompts = PromptEncoder(None, Engine())
    assert await prompts.encode_all(["a", "bc"], add_special=False) == [(1, 0), (2, 0)]
    assert await prompts.encode("abc") == (3, 1)


async def test_bytes_are_tokens() -> None:
    prompts = PromptEncoder(None, None, byte_tokens=True)  # type: ignore[arg-type]
    assert await prompts.encode_all(["a", "é"]) == [(97,), (0xC3, 0xA9)]
