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
    """Return up to 4,096 word ids, the same for every seed, without special or added tokens."""
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
            "cannot generate prompts from this vocabulary: its tokens do not survive decoding and encoding",
            "use a workload of kind jsonl",
            param="workload.kind",
        )
    return tuple(words)


def _iter_candidate_ids(tokenizer: TextTokenizer) -> Iterator[int]:
    """Iterate from the lowest id: merges of frequent words come first."""
    excluded = tokenizer.special_ids | tokenizer.added_ids
    return (number for number in range(tokenizer.vocabulary_size) if number not in excluded)


def _is_word(tokenizer: TextTokenizer, number: int) -> bool:
    """Return whether the token, repeated, decodes to two ASCII words and encodes back to itself."""
    text = tokenizer.decode((number, number))
    parts = text.split()
    if len(parts) != 2 or parts[0] != parts[1] or not (parts[0].isascii() and parts[0].isalpha()):
        return False
    return tokenizer.encode(text, add_special=False) == [number, number]


def _find_pieces(tokenizer: TextTokenizer) -> list[int]:
    """Return single pieces of letters that are stable next to each other and themselves."""
    pieces: list[int] = []
    for number in _iter_candidate_ids(tokenizer):
        if not tokenizer.decode((number,)).strip().isalpha():
            continue
        pairs = [(number, number), *((a, b) for other in pieces for a, b in ((number, other), (other, number)))]
        if all(tokenizer.encode(tokenizer.decode(pair), add_special=False) == list(pair) for pair in pairs):
            pieces.append(number)
            if len(pieces) == MAX_PIECES:
                break
    return pieces


MAX_ATTEMPTS = 8


class PromptWriter:
    """Writes prompts of an exact length from words of the model's vocabulary.

    `send` sets the form: `ids` counts the ids, `text` also the tokens that the tokenizer adds, `chat` also those of the
    chat template. Without a template (`render` is None) only the message itself has the requested length.
    """

    def __init__(self, tokenizer: TextTokenizer, send: str, render: ChatRender | None = None) -> None:
        self.tokenizer = tokenizer
        self.send = send
        self.render = render
        self.words = find_words(tokenizer)

    @property
    def counts_whole_prompt(self) -> bool:
        """Whether the requested length is all that the server will count."""
        return self.send != "chat" or self.render is not None

    def draw_words(self, count: int, rng: Any) -> list[int]:
        """Draw random words."""
        picks: list[int] = rng.integers(len(self.words), size=count).tolist()
        return [self.words[pick] for pick in picks]

    def number_to_words(self, number: int, digits: int) -> list[int]:
        """Encode a number as words, which makes each prompt unique from its first word."""
        words = []
        for _ in range(digits):
            number, digit = divmod(number, len(self.words))
            words.append(self.words[digit])
        return words

    def count_digits(self, count: int) -> int:
        """Return how many words it takes to number `count` prompts."""
        needed, reach = 1, len(self.words)
        while reach < count:
            needed, reach = needed + 1, reach * len(self.words)
        return needed

    def write(self, start: Sequence[int], length: int, rng: Any, keep: int = 1) -> Prompt:
        """Write a prompt of exactly `length` tokens that starts with `start`, or at least `keep` of its words."""
        ids = [*start, *self.draw_words(length - len(start), rng)][:length]
        for _ in range(MAX_ATTEMPTS):
            prompt, counted = self._render_prompt(ids)
            if counted == length:
                return prompt
            # One word is one token, so one correction is enough unless nothing is left to cut.
            ids = [*ids, *self.draw_words(length - counted, rng)] if counted < length else ids[: length - counted]
            if len(ids) < keep:
                break
        raise ConfigError(
            f"cannot write a prompt of {length} tokens for this model",
            "tokens added by the tokenizer and chat template count too: raise input_tokens, or use send: ids",
            param="workload.input_tokens",
        )

    def _render_prompt(self, ids: list[int]) -> tuple[Prompt, int]:
        """Return the prompt in its send form, and its length as the server counts it."""
        text = self.tokenizer.decode(ids)
        if self.send == "ids":
            encoded = tuple(self.tokenizer.encode(text, add_special=False))
            return encoded, len(encoded)
        if self.send == "text":
            return text, len(self.tokenizer.encode(text, add_special=True))
        content = text.strip()  # many templates strip anyway
        messages: tuple[Message, ...] = ({"role": "user", "content": content},)
        if self.render is None:
            return messages, len(self.tokenizer.encode(content, add_special=False))
        return messages, len(self.render(messages))
