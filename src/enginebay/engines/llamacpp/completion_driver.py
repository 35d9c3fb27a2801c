"""Run one library call to completion: attempts, chunks, errors. Each call blocks its own thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from enginebay.contract import Guided, Sink, TokenLogprobs
from enginebay.engines.compile_trial import get_kind
from enginebay.engines.llamacpp.call_queue import LibraryCall
from enginebay.engines.llamacpp.choice_output import ChoiceOutput
from enginebay.engines.llamacpp.guided.guided_continuation import GuidedContinuation
from enginebay.engines.llamacpp.guided.llguidance_matcher import DROPPED, ConstraintError, LlguidanceLibrary
from enginebay.engines.llamacpp.library import LlamaServer
from enginebay.engines.llamacpp.request_body import CompletionAttempt
from enginebay.engines.llamacpp.stderr_tail import truncate_reason
from enginebay.engines.llamacpp.token_pieces import TokenPieces
from enginebay.errors import ContextOverflow, EnginebayError, EngineFailed, InvalidRequest, Unsupported

_EXTRA_TOKENS = 4  # enough to complete a character, which has at most four bytes
_ATTEMPT_SEED_OFFSET = 1_000_003
_BAD_REQUEST = 400
NO_LLGUIDANCE = "this xllamacpp build has no llguidance"
_CONSTRAINTS = {"json": "JSON schema", "regex": "regex", "grammar": "grammar", "choice": "choice"}


class LlamaDriver:
    """Runs calls. Holds what they share: the library, the sink, and what is known of constraints."""

    def __init__(
        self,
        library: LlamaServer,
        sink: Sink,
        prompt_cache: bool,
        llguidance: LlguidanceLibrary | None = None,
        get_token_pieces: Callable[[], TokenPieces] = lambda: TokenPieces(()),
    ) -> None:
        self._library = library
        self._sink = sink
        self._prompt_cache = prompt_cache
        self._llguidance = llguidance
        self._get_token_pieces = get_token_pieces

    def run(self, call: LibraryCall) -> None:
        """Block until every choice of the call has finished. Raises an `EnginebayError` on failure."""
        self._start_constraint(call)
        if call.outputs[0].is_restored_complete():
            self._send_output(call, call.outputs[0], call.outputs[0].end_attempt("limit", False), ())
            return
        if call.outputs[0].restored and call.request.body_builder.guided is not None:
            self._continue_guided(call, call.outputs[0])
            return
        self._attempt(call, call.outputs, tries=0)
        for output in call.outputs:
            tries = 0
            while output.finish_reason is None and not call.request.cancelled:
                if call.request.body_builder.guided is not None:  # another attempt would start the constraint anew
                    self._send_output(call, output, output.give_up(), ())
                    break
                tries += 1
                before = output.count
                self._attempt(call, [output], tries)
                if output.count == before and output.finish_reason is None:
                    self._send_output(call, output, output.give_up(), ())

    def _attempt(self, call: LibraryCall, outputs: Sequence[ChoiceOutput], tries: int) -> None:
        first = outputs[0]
        keep_going = first.count < first.min_tokens
        slack = _EXTRA_TOKENS if tries and not keep_going and first.limit - first.count < _EXTRA_TOKENS else 0
        for output in outputs:
            output.begin_attempt()
        attempt = CompletionAttempt(
            output=first.ids,
            budget=first.attempt_limit - first.count + slack,
            choices=len(outputs),
            seed_offset=first.choice + tries * _ATTEMPT_SEED_OFFSET + first.restored,
            ban_end_tokens=keep_going,
        )
        body = call.request.body_builder.build(attempt) | {"cache_prompt": self._prompt_cache or tries > 0}
        chunks = _ChunkHandler(self._sink, call, outputs, ends_at_limit=slack > 0)
        self._library.stream_completion(body, chunks.handle)
        if chunks.error is not None:
            raise chunks.error
        if slack and not call.request.cancelled and first.finish_reason is None and first.count >= first.limit:
            self._send_output(call, first, first.end_attempt("limit", False), ())

    def _continue_guided(self, call: LibraryCall, output: ChoiceOutput) -> None:
        """Generate the rest of an output of another worker within its constraint."""
        body_builder, pieces = call.request.body_builder, self._get_token_pieces()
        if body_builder.constraint is None or self._llguidance is None or self._llguidance.skips_blanks:
            raise Unsupported("llama.cpp cannot continue this output: its constraint cannot be followed")
        try:
            matcher = self._llguidance.start_with_vocabulary(
                body_builder.constraint, pieces.list_all(), pieces.end_token
            )
        except ConstraintError as problem:
            raise make_constraint_error(body_builder.guided, problem) from None
        allowed = matcher.consume_tokens(output.ids)
        continuation = GuidedContinuation(output, matcher, pieces.get_piece)

        def generate(grammar: str) -> Mapping[str, Any]:
            attempt = CompletionAttempt(output.ids, 1, 1, output.count, ban_end_tokens=False)
            single = {"stream": False, "return_progress": False, "return_tokens": True, "cache_prompt": True}
            responses: list[dict[str, Any]] = []
            self._library.stream_completion(
                body_builder.build(attempt) | single | {"grammar": grammar}, responses.append
            )
            if "choices" not in responses[-1]:
                raise to_error(responses[-1])
            return responses[-1]

        def send(text: str, ids: Sequence[int], logprobs: Sequence[TokenLogprobs] = ()) -> None:
            if text or ids:
                self._sink.token(call.request.number, text, ids, output.choice, logprobs)
            if output.finish_reason is not None:
                self._sink.finish(call.request.number, output.finish_reason, output.choice, output.stop_reason)
            self._sink.flush()

        while allowed and output.finish_reason is None and not call.request.cancelled:
            allowed = continuation.step(generate, send)
        if not allowed:
            raise make_constraint_error(body_builder.guided, DROPPED)

    def _send_output(self, call: LibraryCall, output: ChoiceOutput, text: str, ids: Sequence[int]) -> None:
        if text:
            self._sink.token(call.request.number, text, ids, output.choice)
        if output.finish_reason is not None:
            self._sink.finish(call.request.number, output.finish_reason, output.choice, output.stop_reason)
        self._sink.flush()

    def _start_constraint(self, call: LibraryCall) -> None:
        """Refuse a constraint that the library does not take, and follow each output within it."""
        body_builder = call.request.body_builder
        if body_builder.constraint is None or body_builder.guided is None:
            return
        if self._llguidance is None:  # llama.cpp would abort, or drop the constraint
            kind = get_kind(body_builder.guided)
            raise Unsupported(NO_LLGUIDANCE, "install another version of xllamacpp", param=f"guided_{kind}")
        try:
            for output in call.outputs:
                output.follow(self._llguidance.start(body_builder.constraint, lambda: call.request.cancelled))
        except ConstraintError as problem:
            raise make_constraint_error(body_builder.guided, problem) from None


class _ChunkHandler:
    """Callback of one attempt. Runs once per token, so it is cheap; it never raises."""

    __slots__ = ("_call", "_ends_at_limit", "_guided", "_open_choices", "_outputs", "_request", "_sink", "error")

    def __init__(self, sink: Sink, call: LibraryCall, outputs: Sequence[ChoiceOutput], ends_at_limit: bool) -> None:
        self._sink = sink
        self._call = call
        self._request = call.request
        self._guided = call.request.body_builder.guided
        self._outputs = outputs
        self._ends_at_limit = ends_at_limit
        self._open_choices = len(outputs)
        self.error: Exception | None = None

    def handle(self, chunk: dict[str, Any]) -> bool:
        """Handle one chunk. Returns True to end the attempt."""
        if self._request.cancelled:
            return True
        try:
            return self._handle(chunk)
        except Exception as problem:  # the library would swallow it
            self.error = problem
            return True

    def _handle(self, chunk: dict[str, Any]) -> bool:
        if "choices" not in chunk:
            raise to_error(chunk)
        choice, details = chunk["choices"][0], chunk["__verbose"]
        progress = details.get("prompt_progress")
        if not self._request.accepted:
            self._request.accepted = True
            self._sink.accepted(self._request.number, details["tokens_evaluated"], progress["cache"] if progress else 0)
        if progress is not None:
            self._call.prefilled_tokens = progress["processed"]
            return False
        output = self._outputs[details["index"]]
        if output.finish_reason is not None:
            return False
        if choice["finish_reason"] is None:
            self._send_token(output, choice, details)
        else:
            if details["stop_type"] == "eos" and not output.may_end():
                raise make_constraint_error(self._guided, DROPPED)
            text = output.end_attempt(details["stop_type"], details["truncated"])
            if text:
                self._sink.token(self._request.number, text, (), output.choice)
        if output.finish_reason is not None:
            self._sink.finish(self._request.number, output.finish_reason, output.choice, output.stop_reason)
            self._open_choices -= 1
        self._sink.flush()
        return self._open_choices == 0 or (self._ends_at_limit and output.count >= output.limit)

    def _send_token(self, output: ChoiceOutput, choice: dict[str, Any], details: dict[str, Any]) -> None:
        if output.end_if_complete():
            return
        logprobs_field = choice["logprobs"]
        text, ids, logprobs = output.add_chunk(
            details["content"],
            details["tokens"][0],
            details["tokens_predicted"],
            logprobs_field["content"] if logprobs_field else (),
        )
        if not output.allows(details["content"], ids):
            raise make_constraint_error(self._guided, DROPPED)
        self._sink.token(self._request.number, text, ids, output.choice, logprobs)


def make_constraint_error(guided: Guided | None, problem: ConstraintError) -> InvalidRequest:
    """Return the error for a constraint that llguidance does not take, or cannot follow."""
    kind = next((kind for kind in _CONSTRAINTS if getattr(guided, kind, None) is not None), "json")
    if problem is DROPPED:
        message = f"llama.cpp stopped enforcing the {_CONSTRAINTS[kind]}: it is too complex"
        hint = f"use fewer optional {'properties' if kind == 'json' else 'parts'} and smaller repeat counts"
    elif problem.is_too_complex:
        message = f"the {_CONSTRAINTS[kind]} is too complex for llama.cpp"
        hint = "use fewer optional parts, fewer alternatives and smaller counts"
    else:
        message = f"llama.cpp does not support this {_CONSTRAINTS[kind]}: {truncate_reason(problem.reason)}"
        hint = "change or remove the part it names"
    return InvalidRequest(message, hint, param=f"guided_{kind}")


def to_error(response: Mapping[str, Any]) -> EnginebayError:
    """Convert the library's error response to an Enginebay error."""
    error = response.get("error", response)
    message = str(error.get("message", error))
    if error.get("type") == "exceed_context_size_error":
        return make_context_overflow(int(error.get("n_prompt_tokens", 0)), int(error.get("n_ctx", 0)))
    if error.get("code") == _BAD_REQUEST:
        param = "guided_grammar" if "grammar" in message else None
        hint = "check the grammar" if param else "correct the request"
        return InvalidRequest(f"llama.cpp rejects the request: {message}", hint, param=param)
    return EngineFailed(f"llama.cpp failed on this request: {message}", "see the worker's log")


def make_context_overflow(prompt_tokens: int, context_length: int) -> ContextOverflow:
    return ContextOverflow(
        f"the prompt ({prompt_tokens} tokens) plus output exceeds the model's context length of {context_length} tokens",
        "shorten the prompt, or raise context_length",
        param="prompt",
    )
