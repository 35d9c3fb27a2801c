"""Pass vLLM's outputs to the sink. Duck-typed, so it imports no vLLM."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from enginebay.contract import FinishReason, Sink, TokenLogprobs
from enginebay.engines.vllm.patches.continued_requests import ContinuedOutput
from enginebay.errors import EngineFailed

_FINISH_REASONS = {
    "stop": FinishReason.STOP,
    "repetition": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "abort": FinishReason.CANCELLED,
}


class RequestStream:
    """Receives the outputs of one request. vLLM treats it as the request's queue and only calls `put`."""

    __slots__ = ("active", "continued", "logprobs", "lora", "number", "on_error", "sink", "started", "vllm_request_id")

    def __init__(
        self,
        number: int,
        sink: Sink,
        active: dict[int, RequestStream],
        on_error: Callable[[int, BaseException], None],
        logprobs: int | None,
        lora: Any = None,
        continued: ContinuedOutput | None = None,
    ) -> None:
        self.number = number
        self.sink = sink
        self.active = active
        self.on_error = on_error
        self.logprobs = logprobs
        self.lora = lora
        self.continued = continued
        self.started = False
        self.vllm_request_id: str | None = None  # assigned by vLLM

    @property
    def is_active(self) -> bool:
        return self.active.get(self.number) is self

    def finish(self, reason: FinishReason, stop_reason: str | int | None) -> None:
        """End a request that needs no more output."""
        if self.active.pop(self.number, None) is not None:
            self.sink.finish(self.number, reason, 0, stop_reason)
            self.sink.flush()

    def put(self, output: Any) -> None:
        """Handle one output of one step. Drops everything after a cancel or an error."""
        number = self.number
        if number not in self.active:
            return
        if isinstance(output, BaseException):
            self.on_error(number, output)
            return
        if not self.started:
            self.started = True
            self.sink.accepted(number, len(output.prompt_token_ids), output.num_cached_tokens or 0)
        for choice in output.outputs:
            self._put_choice(choice)
        if output.finished:
            self.active.pop(number, None)

    def _put_choice(self, choice: Any) -> None:
        ids = choice.token_ids
        if ids or choice.text:
            logprobs = build_token_logprobs(ids, choice.logprobs, self.logprobs) if self.logprobs is not None else ()
            self.sink.token(self.number, choice.text, ids, choice.index, logprobs)
        reason = choice.finish_reason
        if reason is None:
            return
        if reason in _FINISH_REASONS:
            self.sink.finish(self.number, _FINISH_REASONS[reason], choice.index, choice.stop_reason)
        else:
            self.on_error(
                self.number,
                EngineFailed(f"vLLM ended the request with {reason!r}", "see the worker's log for the cause"),
            )


def build_token_logprobs(ids: Any, logprobs: Any, count: int) -> list[TokenLogprobs]:
    """Return one entry per new token. vLLM's list covers all tokens so far and adds the sampled token to the top ones."""
    if not logprobs or not ids:
        return []
    entries = []
    for token, candidates in zip(ids, logprobs[-len(ids) :], strict=True):
        best = sorted((entry.rank, key, entry.logprob) for key, entry in candidates.items() if entry.rank <= count)
        entries.append(TokenLogprobs(token, candidates[token].logprob, tuple((key, value) for _, key, value in best)))
    return entries
