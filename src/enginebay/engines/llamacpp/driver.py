"""Runs one call to its end: attempts, chunks, errors. One thread per call, blocked in the library."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from enginebay.contract import Sink
from enginebay.engines.llamacpp.body import Attempt
from enginebay.engines.llamacpp.calls import Call
from enginebay.engines.llamacpp.last_words import LastWords, schema_problem, shortened
from enginebay.engines.llamacpp.library import Library
from enginebay.engines.llamacpp.output import Output
from enginebay.errors import ContextOverflow, EnginebayError, EngineFailed, InvalidRequest

_SLACK = 4  # a character has at most four bytes, so that many more tokens bring one to its end
_SCHEMAS = 256  # verdicts kept: one costs a step of the model to find again
_ATTEMPT_SEED_STEP = 1_000_003
_BAD_REQUEST = 400
_PROBE_TEXT = "@"  # no JSON text begins with it


class Driver:
    """What all calls share: the library, the sink, and which JSON schemas have been tried."""

    def __init__(self, library: Library, sink: Sink, prompt_cache: bool) -> None:
        self._library = library
        self._sink = sink
        self._prompt_cache = prompt_cache
        self._problem = lru_cache(_SCHEMAS)(self._try_schema)

    def run(self, call: Call) -> None:
        """Blocks until every choice of the call has ended. Raises what went wrong."""
        if call.held.bodies.schema is not None:
            self._check_schema(call.held.bodies.schema, call.held.bodies.lora)
        self._attempt(call, call.outputs, tries=0)
        for output in call.outputs:
            tries = 0
            while output.finish_reason is None and not call.held.cancelled:
                tries += 1
                before = output.count
                self._attempt(call, [output], tries)
                if output.count == before and output.finish_reason is None:
                    self._send(call, output, output.give_up(), ())

    def _attempt(self, call: Call, outputs: Sequence[Output], tries: int) -> None:
        first = outputs[0]
        keep_going = first.count < first.min_tokens
        slack = _SLACK if tries and not keep_going and first.limit - first.count < _SLACK else 0
        for output in outputs:
            output.begin_attempt()
        attempt = Attempt(
            output=first.ids,
            budget=first.goal - first.count + slack,
            choices=len(outputs),
            seed_step=first.choice + tries * _ATTEMPT_SEED_STEP,
            keep_going=keep_going,
        )
        body = call.held.bodies.body(attempt) | {"cache_prompt": self._prompt_cache or tries > 0}
        chunks = _Chunks(self._sink, call, outputs, cut=slack > 0)
        self._library.complete(body, chunks.take)
        if chunks.problem is not None:
            raise chunks.problem
        if slack and not call.held.cancelled and first.finish_reason is None and first.count >= first.limit:
            self._send(call, first, first.end_attempt("limit", False), ())

    def _send(self, call: Call, output: Output, text: str, ids: Sequence[int]) -> None:
        if text:
            self._sink.token(call.held.number, text, ids, output.choice)
        if output.finish_reason is not None:
            self._sink.finish(call.held.number, output.finish_reason, output.choice, output.stop_reason)
        self._sink.flush()

    def _check_schema(self, schema: Mapping[str, Any], lora: Mapping[str, Any]) -> None:
        """Refuse a schema that the library does not follow: it would run on without any constraint, and say nothing.

        It is tried with the request's own adapter: with another, the try would wait for all that run with this one.
        """
        problem = self._problem(json.dumps(schema, sort_keys=True), json.dumps(lora))
        if problem is not None:
            raise not_followed(problem)

    def _try_schema(self, text: str, lora: str) -> str | None:
        """None where the library follows this JSON schema, else why not, as far as it tells.

        One token is made under it, with a bias towards a text that no JSON begins with. If that one comes out, the
        schema is not in force.
        """
        token = self._library.ask("POST", "/tokenize", {"content": _PROBE_TEXT, "add_special": False})["tokens"][-1]
        schema = json.loads(text)
        body = {"prompt": [token], "n_predict": 1, "json_schema": schema, "logit_bias": [[token, 1000.0]]}
        fixed = {"samplers": ["temperature"], "temperature": 0.0, "verbose": True, "return_tokens": True}
        words = LastWords()
        answer = self._library.complete_at_once({**body, **fixed, **json.loads(lora)})
        if "error" in answer:
            if answer["error"].get("code") != _BAD_REQUEST:
                raise error_of(answer)  # which says nothing of the schema
            return shortened(str(answer["error"].get("message", "")))
        return schema_problem(words.text(), schema) if answer["__verbose"]["tokens"] == [token] else None


class _Chunks:
    """The callback of one attempt. Runs once per token, so it does little and never raises."""

    __slots__ = ("_call", "_cut", "_held", "_open", "_outputs", "_sink", "problem")

    def __init__(self, sink: Sink, call: Call, outputs: Sequence[Output], cut: bool) -> None:
        self._sink = sink
        self._call = call
        self._held = call.held
        self._outputs = outputs
        self._cut = cut
        self._open = len(outputs)
        self.problem: Exception | None = None

    def take(self, chunk: dict[str, Any]) -> bool:
        """True ends the attempt in the library."""
        if self._held.cancelled:
            return True
        try:
            return self._take(chunk)
        except Exception as problem:  # the library would swallow it
            self.problem = problem
            return True

    def _take(self, chunk: dict[str, Any]) -> bool:
        if "choices" not in chunk:
            raise error_of(chunk)
        choice, details = chunk["choices"][0], chunk["__verbose"]
        progress = details.get("prompt_progress")
        if not self._held.accepted:
            self._held.accepted = True
            self._sink.accepted(self._held.number, details["tokens_evaluated"], progress["cache"] if progress else 0)
        if progress is not None:
            self._call.computed = progress["processed"]
            return False
        output = self._outputs[details["index"]]
        if output.finish_reason is not None:
            return False
        if choice["finish_reason"] is None:
            self._token(output, choice, details)
        else:
            text = output.end_attempt(details["stop_type"], details["truncated"])
            if text:
                self._sink.token(self._held.number, text, (), output.choice)
        if output.finish_reason is not None:
            self._sink.finish(self._held.number, output.finish_reason, output.choice, output.stop_reason)
            self._open -= 1
        self._sink.flush()
        return self._open == 0 or (self._cut and output.count >= output.limit)

    def _token(self, output: Output, choice: dict[str, Any], details: dict[str, Any]) -> None:
        found = choice["logprobs"]
        text, ids, logprobs = output.take(
            details["content"], details["tokens"][0], details["tokens_predicted"], found["content"] if found else ()
        )
        self._sink.token(self._held.number, text, ids, output.choice, logprobs)


def not_followed(problem: str) -> InvalidRequest:
    """`problem` is what the library says of the schema, or empty."""
    what = "llama.cpp cannot follow this JSON schema"
    if problem:
        return InvalidRequest(f"{what}: {problem}", "change or leave out what it names", param="guided_json")
    hint = "check its types and keywords; the log of the worker names the one it stumbled over"
    return InvalidRequest(what, hint, param="guided_json")


def error_of(answer: Mapping[str, Any]) -> EnginebayError:
    """The library's error as ours."""
    found = answer.get("error", answer)
    message = str(found.get("message", found))
    if found.get("type") == "exceed_context_size_error":
        return overflow(int(found.get("n_prompt_tokens", 0)), int(found.get("n_ctx", 0)))
    if found.get("code") == _BAD_REQUEST:
        param = "guided_grammar" if "grammar" in message else None
        hint = "check the grammar" if param else "correct the request"
        return InvalidRequest(f"llama.cpp refuses the request: {message}", hint, param=param)
    return EngineFailed(f"llama.cpp failed on this request: {message}", "the log of the worker has more")


def overflow(prompt_tokens: int, context_length: int) -> ContextOverflow:
    return ContextOverflow(
        f"the prompt has {prompt_tokens} tokens, and the context holds {context_length} with the answer",
        "shorten the prompt, or raise context_length",
        param="prompt",
    )
