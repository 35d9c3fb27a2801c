"""One choice of one request while it is being generated. No torch here."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

from enginebay.contract import FinishReason, GenerateRequest, Sampling
from enginebay.engines.transformers.guided import Constraint
from enginebay.text.incremental import Decodes, IncrementalDecoder, StopScanner


class Row:
    """Tokens so far, and what ends them. `key` names the row in the KV cache; `cached` counts its tokens there.

    A token is taken by `note`, which tells whether it was the last, and then read by `text`; `push` does both. What can
    wait is in `text`: the next step needs to know who ends, not what it reads.
    """

    def __init__(
        self,
        key: int,
        number: int,
        choice: int,
        request: GenerateRequest,
        seed: int,
        ends: frozenset[int],
        context_length: int,
        tokenizer: Decodes,
        constraint: Constraint | None = None,
    ) -> None:
        self.key = key
        self.number = number
        self.choice = choice
        self.prompt: Sequence[int] = request.token_ids or ()
        self.sampling: Sampling = request.sampling
        self.lora = request.lora
        self.seed = seed
        self.constraint = constraint
        self.greedy = request.sampling.greedy
        self.shaped = constraint is not None or shapes_logits(request.sampling)
        self.output: list[int] = []
        self.cached = 0
        self.room = 0  # tokens that the KV cache has been asked to hold
        self.siblings: list[Row] = []  # choices of the same request that start from this row's prompt
        self.finished: FinishReason | None = None
        self.stop_reason: str | int | None = None
        self.limit = output_limit(request.sampling, len(self.prompt), context_length)
        self.min_tokens = request.sampling.min_tokens or 0
        eos = frozenset() if request.sampling.ignore_eos else ends
        self._eos = eos
        self.ends = eos | frozenset(request.sampling.stop_token_ids)
        self._decoder = IncrementalDecoder(tokenizer, self.prompt)
        self._scanner = StopScanner(request.sampling.stop)
        self._text_ends_it = bool(request.sampling.stop) or constraint is not None
        self._read: str | None = None  # text of the token noted last, where it had to be read at once

    @property
    def length(self) -> int:
        return len(self.prompt) + len(self.output)

    def tokens(self, start: int, stop: int) -> list[int]:
        """Prompt and output as one sequence, from `start` to before `stop`."""
        split = len(self.prompt)
        return [*self.prompt[start:stop], *self.output[max(0, start - split) : max(0, stop - split)]]

    def luck(self, position: int) -> int:
        """The 62 random bits that pick the output's token at `position`.

        A pure function of seed, choice and place: so a seed gives the same output whatever shares the batch, and a
        token that is computed twice (the row lost its cache, or a draft was wrong) comes out the same.
        """
        return luck(self.seed, self.choice, position)

    def push(self, token: int) -> str:
        """Take the next token; returns the text to send, and sets `finished` when it was the last."""
        self.note(token)
        return self.text()

    def note(self, token: int) -> None:
        """Take the next token, and set `finished` when it was the last."""
        self.output.append(token)
        if token in self.ends and len(self.output) > self.min_tokens:
            self.finished = FinishReason.STOP
            self.stop_reason = None if token in self._eos else token
        elif self._text_ends_it:
            self._read = self._read_on(token)
        elif len(self.output) >= self.limit:
            self.finished = FinishReason.LENGTH

    def text(self) -> str:
        """What to send for the token noted last; once for each."""
        if self._read is not None:
            text, self._read = self._read, None
            return text
        if self.finished is FinishReason.STOP:
            return self._rest()
        text = self._scan(self._decoder.feed(self.output[-1]))
        return text if self.finished is None else text + self._rest()

    def _read_on(self, token: int) -> str:
        """The token's text, where that may be what ends the row."""
        text = self._scan(self._decoder.feed(token))
        if self._scanner.matched is not None:
            self.finished, self.stop_reason = FinishReason.STOP, self._scanner.matched
        elif self.constraint is not None and self.constraint.complete(self.output):
            self.finished = FinishReason.STOP
            text += self._rest()
        elif len(self.output) >= self.limit:
            self.finished = FinishReason.LENGTH
            text += self._rest()
        return text

    def _scan(self, text: str) -> str:
        # Stop strings count from min_tokens on, as stop tokens do.
        return self._scanner.feed(text) if len(self.output) > self.min_tokens else text

    def _rest(self) -> str:
        text = self._scan(self._decoder.finish())
        return text if self._scanner.matched is not None else text + self._scanner.finish()


def output_limit(sampling: Sampling, prompt_tokens: int, context_length: int) -> int:
    """Tokens the row may generate: max_tokens, or what the context leaves."""
    room = context_length - prompt_tokens
    return room if sampling.max_tokens is None else min(sampling.max_tokens, room)


def shapes_logits(sampling: Sampling) -> bool:
    """Whether something is done to the row's logits at every token, before temperature and filters."""
    return bool(
        sampling.logit_bias
        or sampling.value("repetition_penalty") != 1.0
        or sampling.value("presence_penalty")
        or sampling.value("frequency_penalty")
        or sampling.value("no_repeat_ngram_size")
    )


def luck(seed: int, choice: int, position: int) -> int:
    """62 random bits, the same on every machine."""
    digest = hashlib.blake2b(struct.pack("<qqq", seed, choice, position), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 2
