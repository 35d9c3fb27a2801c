"""Prompts that are long, alone or together, are tokenized in a thread."""

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
    encoder: Any = PromptEncoder(None, None)  # type: ignore[arg-type]
    encoder.tokenizer = Letters()
    return encoder


def ran_in_thread(prompts: Any) -> bool:
    [used] = prompts.tokenizer.threads
    return bool(used != threading.get_ident())


@pytest.mark.parametrize(
    ("texts", "in_thread"),
    [(["ab"], False), (["ab"] * 100, False), (["a" * 8001], True), (["a" * 7900] * 2, True), (["ab"] * 5000, True)],
)
async def test_long_texts_are_tokenized_in_a_thread(prompts: Any, texts: list[str], in_thread: bool) -> None:
    found = await prompts.encode_all(texts)
    assert found == [(0, *map(ord, text)) for text in texts] and ran_in_thread(prompts) is in_thread


@pytest.mark.parametrize("large", [True, False])
async def test_a_prompt_of_a_large_body_is_tokenized_in_a_thread(prompts: Any, large: bool) -> None:
    ids = await prompts.encode_request(GenerateRequest(text="ab"), large)
    assert ids == (0, 97, 98) and ran_in_thread(prompts) is large


async def test_without_a_tokenizer_the_engine_tokenizes_each_text() -> None:
    class Engine:
        async def tokenize(self, text: str, add_special: bool = True) -> list[int]:
            return [len(text), add_special]

    prompts = PromptEncoder(None, Engine())
    assert await prompts.encode_all(["a", "bc"], add_special=False) == [(1, 0), (2, 0)]
    assert await prompts.encode("abc") == (3, 1)


async def test_bytes_are_tokens() -> None:
    prompts = PromptEncoder(None, None, byte_tokens=True)  # type: ignore[arg-type]
    assert await prompts.encode_all(["a", "é"]) == [(97,), (0xC3, 0xA9)]


async def test_a_template_option_may_have_the_name_of_a_parameter(prompts: Any) -> None:
    """Clients choose the names: `chat_template_kwargs: {"bound": 1}` used to fail the request with 500."""
    request = GenerateRequest(messages=({"role": "user", "content": "ab"},))
    names = ("bound", "large", "request", "text", "options", "tokens")
    assert await prompts.encode_request(request, False, None, **dict.fromkeys(names, 1)) == (97, 98)
