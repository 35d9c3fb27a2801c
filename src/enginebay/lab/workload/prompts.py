"""Prompts of exact token counts, as the server will count them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from enginebay.errors import ConfigError
from enginebay.lab.requests import Prompt
from enginebay.lab.workload.spec import Message, Render, TextTokenizer
from enginebay.lab.workload.words import find_words

ATTEMPTS = 8


class PromptWriter:
    """Writes prompts of a wanted length from words of the model's own vocabulary.

    `send` is how they go out: `ids` counts the ids, `text` also what the tokenizer puts around a text, `chat` also what the chat
    template does. Where a chat's template is not known (`render` is None) only the message itself has the wanted length.
    """

    def __init__(self, tokenizer: TextTokenizer, send: str, render: Render | None = None) -> None:
        self.tokenizer = tokenizer
        self.send = send
        self.render = render
        self.words = find_words(tokenizer)

    @property
    def counts_all(self) -> bool:
        """Whether the wanted length is all that the server will count."""
        return self.send != "chat" or self.render is not None

    def draw(self, count: int, chance: Any) -> list[int]:
        """So many random words."""
        picks: list[int] = chance.integers(len(self.words), size=count).tolist()
        return [self.words[pick] for pick in picks]

    def numbered(self, number: int, digits: int) -> list[int]:
        """A number written in words: what makes each prompt different from its first word on."""
        found = []
        for _ in range(digits):
            number, digit = divmod(number, len(self.words))
            found.append(self.words[digit])
        return found

    def digits(self, count: int) -> int:
        """How many words it takes to number so many prompts."""
        needed, reach = 1, len(self.words)
        while reach < count:
            needed, reach = needed + 1, reach * len(self.words)
        return needed

    def write(self, start: Sequence[int], length: int, chance: Any, keep: int = 1) -> Prompt:
        """A prompt of exactly `length` tokens that begins with `start`, or at least `keep` words of it; the rest is random."""
        ids = [*start, *self.draw(length - len(start), chance)][:length]
        for _ in range(ATTEMPTS):
            prompt, counted = self._finished(ids)
            if counted == length:
                return prompt
            # One word is one token, so the length is right after one correction, unless there is nothing left to cut.
            ids = [*ids, *self.draw(length - counted, chance)] if counted < length else ids[: length - counted]
            if len(ids) < keep:
                break
        raise ConfigError(
            f"a prompt of {length} tokens cannot be made for this model",
            "what its tokenizer and chat template put around the text counts too: raise input_tokens, or use send: ids",
            param="workload.input_tokens",
        )

    def _finished(self, ids: list[int]) -> tuple[Prompt, int]:
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
