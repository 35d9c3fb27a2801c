"""POST /v1/completions"""

from __future__ import annotations

from typing import Any

from enginebay.contract import GenerateRequest, Sampling
from enginebay.errors import InvalidRequest, Unsupported
from enginebay.server.answers.choice import Choice
from enginebay.server.answers.completion import CompletionForm
from enginebay.server.answers.streamed import Streamed
from enginebay.server.answers.whole import Whole
from enginebay.server.call import Call
from enginebay.server.context import Context
from enginebay.server.generating import prepare, run
from enginebay.server.limit_words import over_limit
from enginebay.server.sampling import (
    check_bookkeeping,
    check_stream_options,
    read_constraint,
    read_sampling,
    stream_notes,
)
from enginebay.server.served import ServedModel
from enginebay.server.wire.bodies import CompletionBody
from enginebay.server.wire.decode import decode

DEFAULT_MAX_TOKENS = 16  # of the OpenAI API, for this endpoint alone

Prompt = str | tuple[int, ...]


async def completions(context: Context, call: Call) -> None:
    body = decode(CompletionBody, call.exchange.body)
    served, lora = await context.model(call, body.model, stream=bool(body.stream))
    limits = served.limits
    _check(body)
    prompts = await call.beside(read_prompts, body.prompt, "prompts", served, "prompt")
    call.stream = bool(body.stream)
    call.prompt = body.prompt
    sampling = await call.beside(_read, body, served)
    sequences = len(prompts) * (sampling.best_of or sampling.n)
    if sequences > limits.prompts:
        raise over_limit(f"prompts times n is {sequences}", limits, "prompts", "n")
    requests = [
        GenerateRequest(text=prompt, sampling=sampling, lora=lora, energy=body.wants_energy)
        if isinstance(prompt, str)
        else GenerateRequest(token_ids=prompt, sampling=sampling, lora=lora, energy=body.wants_energy)
        for prompt in prompts
    ]
    prepared = [
        await prepare(
            call,
            served,
            request,
            truncate=body.truncate_prompt_tokens,
            asked=body.max_tokens,
            notes=stream_notes(body),
        )
        for request in requests
    ]
    echoes = [_echo(prompt, served) if body.echo else "" for prompt in prompts for _ in range(sampling.n)]
    choices = [Choice(index) for index in range(len(prompts) * sampling.n)]
    form = CompletionForm(
        id=f"cmpl-{call.id}",
        created=int(call.started),
        model=body.model,
        fingerprint=served.engine,
        echoes=echoes,
        with_logprobs=sampling.logprobs is not None,
        include_usage=body.wants_usage,
        include_timing=body.wants_timing,
        include_energy=body.wants_energy,
        token_bytes=served.client.prompts.token_bytes,
    )
    answer = (
        Streamed(call.exchange, served, choices, form)
        if call.stream
        else Whole(call.exchange, served, choices, form.body)
    )
    await run(call, served, answer, prepared)


def _read(body: CompletionBody, served: ServedModel) -> Sampling:
    fallback = None
    if "max_tokens" not in served.defaults:
        fallback = min(DEFAULT_MAX_TOKENS, served.limits.max_tokens or DEFAULT_MAX_TOKENS)
    return read_sampling(
        body, served.defaults, served.limits,
        max_tokens=body.max_tokens or fallback, logprobs=body.logprobs,
        guided=read_constraint(body, served.limits).guided,
        vocabulary=served.client.prompts.vocabulary_size,
    )  # fmt: skip


def _check(body: CompletionBody) -> None:
    check_bookkeeping(body)
    if body.suffix:
        raise Unsupported("text cannot be inserted before a suffix", "leave out suffix", param="suffix")
    if body.echo and body.logprobs is not None:
        raise Unsupported(
            "the prompt's own log probabilities are not known", "leave out echo or logprobs", param="echo"
        )
    check_stream_options(body)


def _echo(prompt: Prompt, served: ServedModel) -> str:
    return prompt if isinstance(prompt, str) else served.client.prompts.decode(prompt)


def read_prompts(given: Any, limit: str, served: ServedModel, param: str) -> list[Prompt]:
    """One text, one list of token ids, or a list of either, as long as the limit of this name allows."""
    if isinstance(given, str):
        return [given]
    if all(_is_token(one) for one in given):
        return [_tokens(given, served, param)]
    if len(given) > getattr(served.limits, limit):
        raise over_limit(f"{param} has {len(given)} entries", served.limits, limit, param)
    return [_one(one, served, param) for one in given]


def _one(given: Any, served: ServedModel, param: str) -> Prompt:
    if isinstance(given, str) and given:
        return given
    if isinstance(given, list) and given and all(_is_token(one) for one in given):
        return _tokens(given, served, param)
    if given in ("", []):
        raise InvalidRequest(f"{param} has an empty entry", "give at least one token", param=param)
    raise InvalidRequest(f"{param} is a text, a list of token ids, or a list of either", param=param)


def _is_token(one: Any) -> bool:
    return isinstance(one, int) and not isinstance(one, bool)


def _tokens(ids: list[int], served: ServedModel, param: str) -> tuple[int, ...]:
    known = served.client.prompts.vocabulary_size or 2**31
    if not 0 <= min(ids) <= max(ids) < known:
        raise InvalidRequest(
            f"{param} has token ids outside of 0 to {known - 1}",
            "token ids are those of this model's own tokenizer; or send text",
            param=param,
        )
    return tuple(ids)
