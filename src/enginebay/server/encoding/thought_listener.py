"""The first of two phases of a response: the thought, without a constraint and up to its token budget.

When the thought ends, its request is cancelled, and a second one generates the answer: its prompt has the thought, and its
sampling the constraint. Without a constraint, a thought that ends within its budget needs no second request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from enginebay.contract import Delta, FinishReason, GenerateRequest
from enginebay.contract.engine_messages import Done, Timing, Usage
from enginebay.errors import EnginebayError, EngineFailed
from enginebay.text.reasoning import ReasoningFormat


@dataclass(frozen=True, slots=True)
class ThoughtLimits:
    """When a thought ends, and what follows it."""

    reasoning_format: ReasoningFormat
    prompt_end: str
    answer: GenerateRequest  # with the constraint; its prompt has no thought
    binds_answer: bool  # the answer has a constraint
    max_tokens: int | None  # of the thought
    context_length: int
    encode: Callable[[str], Sequence[int]]


class TwoPhaseWriter(Protocol):
    """What the listener needs of a `ResponseWriter`."""

    @property
    def token_ids(self) -> Sequence[int]: ...

    def restore_markers(self, text: str, token_ids: Sequence[int]) -> str: ...
    def on_token(self, text: str, token_id: int) -> None: ...
    def on_delta(self, delta: Delta) -> None: ...
    def on_flush(self) -> None: ...
    def on_done(self, done: Done) -> None: ...
    def on_error(self, error: EnginebayError) -> None: ...
    def insert_text(self, text: str) -> None: ...
    def cancel_requests(self) -> None: ...
    def submit_answer(self, request: GenerateRequest) -> None: ...
    def complete_done(self, done: Done, energy_absent: str) -> Done: ...


class ThoughtListener:
    """Listens for the thought of a response with one choice, and passes it on to the writer."""

    def __init__(self, writer: TwoPhaseWriter, limits: ThoughtLimits) -> None:
        self._writer = writer
        self._limits = limits
        self._parser = limits.reasoning_format.create_parser(None, limits.prompt_end)
        self._held: list[Delta] = []  # until it is known whether a thought begins
        self._tokens = 0
        self._passes = False  # all that follows goes to the writer
        self._is_over = False  # the answer has a request of its own

    def on_token(self, text: str, token_id: int) -> None:
        if self._passes:
            self._writer.on_token(text, token_id)
        else:
            self.on_delta(Delta(text, (token_id,)))

    def on_delta(self, delta: Delta) -> None:
        if self._passes:
            self._writer.on_delta(delta)
        elif self._is_over:
            return
        elif delta.finish_reason is None:
            self._read(delta)
        else:
            if delta.text or delta.token_ids:
                self._read(replace(delta, finish_reason=None))
            self._handle_finish(delta)

    def _read(self, delta: Delta) -> None:
        self._parser.feed(self._writer.restore_markers(delta.text, delta.token_ids))
        self._tokens += len(delta.token_ids)
        budget = self._limits.max_tokens
        is_spent = budget is not None and self._tokens >= budget
        if self._parser.thought_ended:
            self._end_thought(delta)
        elif self._parser.thought_began:
            self._pass_held()
            self._writer.on_delta(delta)
            if is_spent:
                self._cut_thought()
        elif is_spent:
            self._skip_thought(self._limits.reasoning_format.skip_thought)
        else:
            self._held.append(delta)

    def _end_thought(self, delta: Delta) -> None:
        """Pass the end of the thought on, or the start of an answer without one."""
        if not self._limits.binds_answer:
            self._pass_held()
            self._passes = True
            self._writer.on_delta(delta)
        elif not self._parser.thought_began:
            self._skip_thought(self._limits.reasoning_format.without_thought)
        else:
            self._pass_held()
            rest, thought_ids = self._parser.rest, None
            if rest.strip():  # the token that ends the thought begins the answer, too
                head = delta.text.removesuffix(rest)
                head_ids = self._limits.encode(head)
                thought_ids = (*self._writer.token_ids, *head_ids) if head_ids else None
                delta = replace(delta, text=head)
            self._writer.on_delta(delta)
            gap = "" if rest and not rest.strip() else self._limits.reasoning_format.after_thought
            self._begin_answer(gap, thought_ids)

    def _cut_thought(self) -> None:
        self._begin_answer(self._limits.reasoning_format.end_thought)

    def _skip_thought(self, instead: str) -> None:
        """Answer without what was generated so far, which the client has not seen."""
        self._held.clear()
        self._begin_answer(instead)

    def _begin_answer(self, lead: str, thought_ids: Sequence[int] | None = None) -> None:
        """End the request of the thought, and submit that of the answer. `lead`: the text between them."""
        self._is_over = True
        try:
            self._writer.cancel_requests()
            self._submit_answer(lead, thought_ids)
        except EnginebayError as error:
            self._writer.on_error(error)
        except Exception as error:  # nothing else listens any more, so the response would never end
            self._writer.on_error(EngineFailed(f"the answer after the thought could not begin: {error!r}"))

    def _submit_answer(self, lead: str, thought_ids: Sequence[int] | None) -> None:
        answer, used = self._limits.answer, len(self._writer.token_ids)
        thought = self._writer.token_ids if thought_ids is None else thought_ids
        prompt = (*(answer.token_ids or ()), *thought, *(self._limits.encode(lead) if lead else ()))
        available, asked = self._limits.context_length - len(prompt), answer.sampling.max_tokens
        max_tokens = available if asked is None else min(asked - used, available)
        if max_tokens < 1:
            return self._end_at_limit()
        if lead:
            self._writer.insert_text(lead)
        min_tokens = min(max(0, (answer.sampling.min_tokens or 0) - used), max_tokens) or None
        sampling = replace(answer.sampling, max_tokens=None if asked is None else max_tokens, min_tokens=min_tokens)
        return self._writer.submit_answer(replace(answer, token_ids=prompt, sampling=sampling))

    def _end_at_limit(self) -> None:
        """End the response: no token is left for the answer."""
        usage = Usage(len(self._limits.answer.token_ids or ()), len(self._writer.token_ids))
        self._writer.on_delta(Delta("", (), 0, (), FinishReason.LENGTH))
        self._writer.on_done(self._writer.complete_done(Done(usage, Timing()), ENERGY_OF_THOUGHT))

    def _handle_finish(self, delta: Delta) -> None:
        """The engine ended the output before it ended the thought."""
        if self._is_over:
            return
        if self._limits.binds_answer and delta.finish_reason is FinishReason.STOP:
            if self._parser.thought_began:
                self._cut_thought()
            else:
                self._skip_thought(self._limits.reasoning_format.without_thought)
        else:
            self._pass_held()
            self._passes = True
            self._writer.on_delta(replace(delta, text="", token_ids=(), logprobs=()))

    def _pass_held(self) -> None:
        for delta in self._held:
            self._writer.on_delta(delta)
        self._held.clear()

    def on_flush(self) -> None:
        self._writer.on_flush()

    def on_done(self, done: Done) -> None:
        if not self._is_over:
            self._writer.on_done(done)

    def on_error(self, error: EnginebayError) -> None:
        self._writer.on_error(error)


ENERGY_OF_THOUGHT = "the response took two engine requests, and only the second reports its energy"


class AnswerListener:
    """Listens for the answer after a thought, and merges the counts of both."""

    def __init__(self, writer: TwoPhaseWriter, prompt_tokens: int) -> None:
        self._writer = writer
        self._prompt_tokens = prompt_tokens
        self._thought_tokens = len(writer.token_ids)
        self.on_token = writer.on_token
        self.on_delta = writer.on_delta
        self.on_flush = writer.on_flush
        self.on_error = writer.on_error

    def on_done(self, done: Done) -> None:
        """The cache served the second request what the first one had computed: that counts as no hit."""
        usage = Usage(self._prompt_tokens, self._thought_tokens + done.usage.completion_tokens)
        self._writer.on_done(self._writer.complete_done(replace(done, usage=usage), ENERGY_OF_THOUGHT))
