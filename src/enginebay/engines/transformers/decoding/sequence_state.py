"""The state of one choice of a running request, and the check of a request before it runs. Does not import torch."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence, Set
from dataclasses import dataclass

from enginebay.contract import FinishReason, GenerateRequest, Sampling, TokenLogprobs
from enginebay.engines.transformers.decoding.guided_decoding import GrammarConstraint
from enginebay.errors import ContextOverflow, InvalidRequest
from enginebay.text.tokenization.detokenizer import IncrementalDetokenizer, StopScanner, TokenDecoder


@dataclass(frozen=True, slots=True)
class SampledToken:
    token: int
    logprobs: tuple[TokenLogprobs, ...] = ()


class SequenceState:
    """The tokens so far, and the conditions that end them. `sequence_id` identifies the sequence in the KV cache.

    `append_token` adds a token and sets `finish_reason`; `take_text` then decodes it.
    Decoding can wait: the next step needs to know which sequences end, not their text.
    """

    def __init__(
        self,
        sequence_id: int,
        number: int,
        choice: int,
        request: GenerateRequest,
        seed: int,
        eos_token_ids: frozenset[int],
        context_length: int,
        tokenizer: TokenDecoder,
        constraint: GrammarConstraint | None = None,
    ) -> None:
        self.sequence_id = sequence_id
        self.number = number
        self.choice = choice
        self.prompt: Sequence[int] = request.token_ids or ()
        self.sampling: Sampling = request.sampling
        self.lora = request.lora
        self.seed = seed
        self.constraint = constraint
        self.greedy = request.sampling.greedy
        self.needs_logit_processing = constraint is not None or needs_logit_processing(request.sampling)
        self.output: list[int] = []
        self.cached_tokens = 0
        self.reserved_tokens = 0  # capacity reserved in the KV cache, in tokens
        self.siblings: list[SequenceState] = []  # choices of the same request that share this prompt
        self.finish_reason: FinishReason | None = None
        self.stop_reason: str | int | None = None
        self.has_left_constraint = False  # the last token is outside the constraint: no token was inside
        self.max_output_tokens = compute_output_limit(request.sampling, len(self.prompt), context_length)
        self.min_tokens = request.sampling.min_tokens or 0
        eos = frozenset() if request.sampling.ignore_eos else eos_token_ids
        self._eos_token_ids = eos
        self.end_token_ids = eos | frozenset(request.sampling.stop_token_ids)
        self._decoder = IncrementalDetokenizer(tokenizer, self.prompt)
        self._scanner = StopScanner(request.sampling.stop)
        self._can_finish_on_text = bool(request.sampling.stop) or constraint is not None
        self._pending_text: str | None = None  # text of the last token, if it was decoded at once
        self.restored: Sequence[int] = request.generated  # output of another worker, which has sent its text
        for token in request.generated:
            if self.finish_reason is None:
                self.append_token(token)
                self.take_text()

    @property
    def length(self) -> int:
        return len(self.prompt) + len(self.output)

    def slice_tokens(self, start: int, stop: int) -> list[int]:
        """Return prompt and output as one list, from `start` to before `stop`."""
        offset = len(self.prompt)
        return [*self.prompt[start:stop], *self.output[max(0, start - offset) : max(0, stop - offset)]]

    def derive_random_bits(self, position: int) -> int:
        """Return the 62 random bits that select the output token at `position`.

        A pure function of seed, choice and position: a seed gives the same output in any batch, and a token that is
        sampled again (after preemption or a rejected draft) stays the same.
        """
        return derive_random_bits(self.seed, self.choice, position)

    def append_token(self, token: int) -> None:
        """Append a token, and set `finish_reason` if it was the last."""
        self.output.append(token)
        self.has_left_constraint = self.constraint is not None and not self.constraint.accepts(self.output)
        if token in self.end_token_ids and len(self.output) > self.min_tokens:
            self.finish_reason = FinishReason.STOP
            self.stop_reason = None if token in self._eos_token_ids else token
        elif self._can_finish_on_text:
            self._pending_text = self._decode_and_check_stop(token)
        elif len(self.output) >= self.max_output_tokens:
            self.finish_reason = FinishReason.LENGTH

    def take_text(self) -> str:
        """Return the text of the last token. Call it once per token."""
        if self._pending_text is not None:
            text, self._pending_text = self._pending_text, None
            return text
        if self.finish_reason is FinishReason.STOP:
            return self._flush_text()
        text = self._scan_for_stop(self._decoder.feed(self.output[-1]))
        return text if self.finish_reason is None else text + self._flush_text()

    def _decode_and_check_stop(self, token: int) -> str:
        """Decode a token whose text may end the sequence."""
        text = self._scan_for_stop(self._decoder.feed(token))
        if self._scanner.matched is not None:
            self.finish_reason, self.stop_reason = FinishReason.STOP, self._scanner.matched
        elif self.constraint is not None and self.constraint.is_complete(self.output):
            self.finish_reason = FinishReason.STOP
            text += self._flush_text()
        elif len(self.output) >= self.max_output_tokens:
            self.finish_reason = FinishReason.LENGTH
            text += self._flush_text()
        return text

    def _scan_for_stop(self, text: str) -> str:
        # Stop strings apply after min_tokens, like stop tokens.
        return self._scanner.feed(text) if len(self.output) > self.min_tokens else text

    def _flush_text(self) -> str:
        text = self._scan_for_stop(self._decoder.finish())
        return text if self._scanner.matched is not None else text + self._scanner.finish()


def check_request(request: GenerateRequest, context_length: int, adapters: Set[str]) -> None:
    """Raise if the model cannot serve the request. Prompts are never truncated; outputs end with the context."""
    prompt = len(request.token_ids or ())
    if prompt >= context_length:
        raise ContextOverflow(
            f"the prompt ({prompt} tokens) plus output exceeds the model's context length of {context_length} tokens",
            "shorten the prompt, or load the model with a larger context_length",
            param="prompt",
        )
    if request.lora is not None and request.lora not in adapters:
        raise InvalidRequest(
            f"unknown LoRA adapter {request.lora!r}",
            f"available: {', '.join(sorted(adapters)) or 'none'}",
            param="lora",
        )
    beams = request.sampling.num_beams or 1
    if beams > 1 and request.sampling.n > beams:
        raise InvalidRequest(f"n = {request.sampling.n} exceeds num_beams = {beams}", "increase num_beams", param="n")


def compute_output_limit(sampling: Sampling, prompt_tokens: int, context_length: int) -> int:
    """Return the maximum output tokens: max_tokens, limited by the context."""
    remaining = context_length - prompt_tokens
    return remaining if sampling.max_tokens is None else min(sampling.max_tokens, remaining)


def needs_logit_processing(sampling: Sampling) -> bool:
    """Return whether every token needs logit processing, before temperature and filters."""
    return bool(
        sampling.logit_bias
        or sampling.value("repetition_penalty") != 1.0
        or sampling.value("presence_penalty")
        or sampling.value("frequency_penalty")
        or sampling.value("no_repeat_ngram_size")
    )


def derive_random_bits(seed: int, choice: int, position: int) -> int:
    """Return 62 random bits, the same on every machine."""
    digest = hashlib.blake2b(struct.pack("<qqq", seed, choice, position), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 2
