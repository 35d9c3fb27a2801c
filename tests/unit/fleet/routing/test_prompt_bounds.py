"""A text that cannot fit is refused, or cut, before all of it is tokenized."""

from __future__ import annotations

from typing import Any

import pytest

from enginebay.contract import GenerateRequest
from enginebay.errors import Unsupported
from enginebay.fleet.routing.prompt_bounds import PromptBound, TextTooLong, split_text
from enginebay.fleet.routing.prompt_encoder import PromptEncoder

MB = 1 << 20


class Words:
    """A tokenizer with one token a word, however long, which remembers how much it got."""

    def __init__(self) -> None:
        self.longest = self.total = 0

    def encode_batch(self, texts: Any, add_special: bool = True) -> list[list[int]]:
        self.longest = max(self.longest, *map(len, texts))
        self.total += sum(map(len, texts))
        return [[0] * add_special + [hash(word) & 0xFFFF for word in text.split()] for text in texts]


@pytest.fixture
def prompts() -> Any:
    encoder: Any = PromptEncoder(None, None)  # type: ignore[arg-type]
    encoder.tokenizer = Words()
    return encoder


async def test_a_prompt_far_over_the_context_is_refused_after_a_part_of_it(prompts: Any) -> None:
    text = "word " * (4 * MB // 5)
    with pytest.raises(TextTooLong) as refused:
        await prompts.encode_request(GenerateRequest(text=text), False, PromptBound(1000))
    assert 1000 < refused.value.min_tokens <= 4 * MB // 5
    assert prompts.tokenizer.total < 40_000


@pytest.mark.parametrize("text", ["x" * MB, " " * MB, "ab " * 300 + "x" * MB, "word " * 900 + "\n" * MB])
async def test_a_text_of_few_tokens_fits_whatever_its_length(prompts: Any, text: str) -> None:
    """No number of bytes says how many tokens a text has."""
    ids = await prompts.encode_request(GenerateRequest(text=text), False, PromptBound(1000))
    assert list(ids) == Words().encode_batch([text])[0]


async def test_usual_texts_are_tokenized_once(prompts: Any) -> None:
    text = "word " * 1500
    ids = await prompts.encode_request(GenerateRequest(text=text), False, PromptBound(1000))
    assert len(ids) == 1501 and prompts.tokenizer.total == len(text), "the exact number is for the message"


@pytest.mark.parametrize("keep", ["last", "first"])
async def test_a_text_to_be_truncated_is_cut_before(prompts: Any, keep: str) -> None:
    text = " ".join(map(str, range(200_000)))
    bound = PromptBound(50, keep)
    needed = await prompts.apply_bound(text, bound)
    whole, cut = (Words().encode_batch([one], add_special=False)[0] for one in (text, needed))
    assert bound.cut and len(needed) < 40_000
    assert whole[-50:] == cut[-50:] if keep == "last" else whole[:50] == cut[:50]
    assert prompts.tokenizer.longest <= 16_000


async def test_nothing_is_cut_from_a_text_that_is_short_enough(prompts: Any) -> None:
    bound = PromptBound(50, "last")
    assert await prompts.apply_bound("word " * 100, bound) == "word " * 100 and not bound.cut


@pytest.mark.parametrize("text", ["", "a", "x" * 50_000, "word " * 20_000, "x" * 15_999 + " " + "y" * 16_000])
@pytest.mark.parametrize("from_end", [True, False])
def test_the_pieces_are_the_text(text: str, from_end: bool) -> None:
    pieces = list(split_text(text, from_end=from_end))
    assert "".join(reversed(pieces) if from_end else pieces) == text and all(len(piece) <= 16_000 for piece in pieces)


async def test_what_stand_ins_stand_for_counts(prompts: Any) -> None:
    """A message of special tokens is short only until it is restored."""
    text = "\U000f0000" * 20_000
    with pytest.raises(TextTooLong):
        await prompts.apply_bound(text, PromptBound(1000), {"\U000f0000": "<|im_end|> "})
    assert await prompts.apply_bound(text[:500], PromptBound(1000), {"\U000f0000": "<|im_end|> "}) == text[:500]


async def test_many_texts_are_tokenized_in_batches(prompts: Any) -> None:
    sizes: list[int] = []
    encode_batch = prompts.tokenizer.encode_batch
    prompts.tokenizer.encode_batch = lambda texts, *rest: (
        sizes.append(sum(map(len, texts))) or encode_batch(texts, *rest)
    )
    texts = [f"{number} " + "word " * 10_000 for number in range(40)] + ["x" * MB, "last"]
    encoded = await prompts.encode_all(texts)
    assert encoded == [tuple(Words().encode_batch([text])[0]) for text in texts]
    assert sorted(sizes)[-2] <= 256_000 and sum(sizes) == sum(map(len, texts))


@pytest.mark.parametrize("request_", [GenerateRequest(text="x"), GenerateRequest(messages=({"role": "user"},))])
async def test_an_engines_own_tokenizer_cannot_escape(request_: GenerateRequest) -> None:
    encoder: Any = PromptEncoder(None, None)  # type: ignore[arg-type]
    with pytest.raises(Unsupported) as refused:
        await encoder.encode_request(request_, allow_special_tokens=False)
    assert refused.value.param == "allow_special_tokens"
