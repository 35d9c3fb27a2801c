"""Prompts of exact token counts, as the server will count them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from enginebay.errors import ConfigError
from enginebay.lab.workload.request_records import Prompt
from enginebay.lab.workload.workload_spec import ChatRender, Message, TextTokenizer

MAX_WORDS = 4096
MIN_WORDS = 256
MAX_PIECES = 64


def find_words(tokenizer: TextTokenizer) -> tuple[int, ...]:
    """The ids of up to 4,096 words, the same for every seed. Never special or added tokens."""
    words: list[int] = []
    for number in _iter_candidate_ids(tokenizer):
        if _is_word(tokenizer, number):
            words.append(number)
            if len(words) == MAX_WORDS:
                break
    if len(words) < MIN_WORDS:
        words = max(words, _find_pieces(tokenizer), key=len)
    if len(words) < 2:
        raise ConfigError(
            "no prompts can be made from this vocabulary: its tokens change on the way to text and back",
            "take a workload of kind jsonl",
            param="workload.kind",
        )
    return tuple(words)


def _iter_candidate_ids(tokenizer: TextTokenizer) -> Iterator[int]:
    """From the lowest id on: merges of frequent words come first."""
    barred = tokenizer.special_ids | tokenizer.added_ids
    return (number for number in range(tokenizer.vocabulary_size) if number not in barred)


def _is_word(tokenizer: TextTokenizer, number: int) -> bool:
    """Twice in a row, it reads as two words of ASCII letters and comes back as itself twice."""
    text = tokenizer.decode((number, number))
    parts = text.split()
    if len(parts) != 2 or parts[0] != parts[1] or not (parts[0].isascii() and parts[0].isalpha()):
        return False
    return tokenizer.encode(text, add_special=False) == [number, number]


def _find_pieces(tokenizer: TextTokenizer) -> list[int]:
    """Single pieces of letters, each safe beside every other and itself."""
    found: list[int] = []
    for number in _iter_candidate_ids(tokenizer):
        if not tokenizer.decode((number,)).strip().isalpha():
            continue
        pairs = [(number, number), *((a, b) for other in found for a, b in ((number, other), (other, number)))]
        if all(tokenizer.encode(tokenizer.decode(pair), add_special=False) == list(pair) for pair in pairs):
            found.append(number)
            if len(found) == MAX_PIECES:
                break
    return found


MAX_ATTEMPTS = 8


class PromptWriter:
    """Writes prompts of a wanted length from words of the model's own vocabulary.

    `send` is how they go out: `ids` counts the ids, `text` also what the tokenizer puts around a text, `chat` also what the chat
    template does. Where a chat's template is not known (`render` is None) only the message itself has the wanted length.
    """

    def __init__(self, tokenizer: TextTokenizer, send: str, render: ChatRender | None = None) -> None:
        self.tokenizer = tokenizer
        self.send = send
        self.render = render
        self.words = find_words(tokenizer)

    @property
    def counts_whole_prompt(self) -> bool:
        """Whether the wanted length is all that the server will count."""
        return self.send != "chat" or self.render is not None

    def draw_words(self, count: int, chance: Any) -> list[int]:
        """So many random words."""
        picks: list[int] = chance.integers(len(self.words), size=count).tolist()
        return [self.words[pick] for pick in picks]

    def number_to_words(self, number: int, digits: int) -> list[int]:
        """A number written in words: what makes each prompt different from its first word on."""
        found = []
        for _ in range(digits):
            number, digit = divmod(number, len(self.words))
            found.append(self.words[digit])
        return found

    def count_digits(self, count: int) -> int:
        """How many words it takes to number so many prompts."""
        needed, reach = 1, len(self.words)
        while reach < count:
            needed, reach = needed + 1, reach * len(self.words)
        return needed

    def write(self, start: Sequence[int], length: int, chance: Any, keep: int = 1) -> Prompt:
        """A prompt of exactly `length` tokens that begins with `start`, or at least `keep` words of it; the rest is random."""
        ids = [*start, *self.draw_words(length - len(start), chance)][:length]
        for _ in range(MAX_ATTEMPTS):
            prompt, counted = self._render_prompt(ids)
            if counted == length:
                return prompt
            # One word is one token, so the length is right after one correction, unless there is nothing left to cut.
            ids = [*ids, *self.draw_words(length - counted, chance)] if counted < length else ids[: length - counted]
            if len(ids) < keep:
                break
        raise ConfigError(
            f"a prompt of {length} tokens cannot be made for this model",
            "what its tokenizer and chat template put around the text counts too: raise input_tokens, or use send: ids",
            param="workload.input_tokens",
        )

    def _render_prompt(self, ids: list[int]) -> tuple[Prompt, int]:
        """The prompt in the form that goes out, and its length as the server counts it."""
        text = self.tokenizer.decode(ids)
        if self.send == "ids":
            again = tuple(self.tokenizer.encode(text, add_special=False))
            return again, len(again)
        if self.send == "text":
            return text, len(self.tokenizer.encode(text, add_special=True))
        content = text.strip()  # many templates do so anyway
        messages: tuple[Message, ...] = ({"role": "user", "content": content},)
        if self.render is None:
            return messages, len(self.tokenizer.encode(content, add_special=False))
        return messages, len(self.render(messages))
