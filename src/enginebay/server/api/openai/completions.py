"""POST /v1/completions"""

from __future__ import annotations

from typing import Any

from enginebay.contract import GenerateRequest, Sampling
from enginebay.errors import InvalidRequest, Unsupported
from enginebay.server.api.body_decoder import decode_body
from enginebay.server.api.openai.encoders.completion_encoder import CompletionEncoder
from enginebay.server.api.openai.sampling_params import (
    check_stream_options,
    check_unsupported_account_fields,
    list_stream_notes,
    read_constraint,
    read_sampling,
)
from enginebay.server.api.openai.schemas import CompletionBody
from enginebay.server.encoding.choice_state import ChoiceState
from enginebay.server.encoding.choices_json_writer import ChoicesJsonWriter
from enginebay.server.encoding.choices_sse_writer import ChoicesSseWriter
from enginebay.server.requests.request_context import RequestContext
from enginebay.server.requests.run_generation import generate_response, prepare_request
from enginebay.server.requests.server_context import ServerContext
from enginebay.server.sessions.model_session import ModelSession
from enginebay.util.limit_errors import make_limit_error

DEFAULT_MAX_TOKENS = 16  # of the OpenAI API, for this endpoint alone

CompletionPrompt = str | tuple[int, ...]


async def create_completion(context: ServerContext, request_context: RequestContext) -> None:
    body = decode_body(CompletionBody, request_context.exchange.body)
    served, lora = await context.acquire_session(request_context, body.model, stream=bool(body.stream))
    limits = served.limits
    _check_fields(body)
    prompts = await request_context.run_offloaded(parse_prompts, body.prompt, "prompts", served, "prompt")
    request_context.stream = bool(body.stream)
    request_context.prompt = body.prompt
    sampling = await request_context.run_offloaded(_read_sampling, body, served)
    sequences = len(prompts) * (sampling.best_of or sampling.n)
    if sequences > limits.prompts:
        raise make_limit_error(f"prompts times n is {sequences}", limits, "prompts", "n")
    requests = [
        GenerateRequest(text=prompt, sampling=sampling, lora=lora, energy=body.wants_energy)
        if isinstance(prompt, str)
        else GenerateRequest(token_ids=prompt, sampling=sampling, lora=lora, energy=body.wants_energy)
        for prompt in prompts
    ]
    prepared = [
        await prepare_request(
            request_context,
            served,
            request,
            truncate=body.truncate_prompt_tokens,
            requested_max_tokens=body.max_tokens,
            notes=list_stream_notes(body),
        )
        for request in requests
    ]
    echoes = [_decode_prompt(prompt, served) if body.echo else "" for prompt in prompts for _ in range(sampling.n)]
    choices = [ChoiceState(index) for index in range(len(prompts) * sampling.n)]
    form = CompletionEncoder(
        id=f"cmpl-{request_context.id}",
        created=int(request_context.started_at),
        model=body.model,
        fingerprint=served.engine,
        echoes=echoes,
        with_logprobs=sampling.logprobs is not None,
        include_usage=body.wants_usage,
        include_timing=body.wants_timing,
        include_energy=body.wants_energy,
        token_bytes=served.client.prompt_encoder.get_token_bytes,
    )
    answer = (
        ChoicesSseWriter(request_context.exchange, served, choices, form)
        if request_context.stream
        else ChoicesJsonWriter(request_context.exchange, served, choices, form.encode_body)
    )
    await generate_response(request_context, served, answer, prepared)


def _read_sampling(body: CompletionBody, session: ModelSession) -> Sampling:
    fallback = None
    if "max_tokens" not in session.sampling_defaults:
        fallback = min(DEFAULT_MAX_TOKENS, session.limits.max_tokens or DEFAULT_MAX_TOKENS)
    return read_sampling(
        body, session.sampling_defaults, session.limits,
        max_tokens=body.max_tokens or fallback, logprobs=body.logprobs,
        guided=read_constraint(body, session.limits).guided,
        vocabulary_size=session.client.prompt_encoder.vocabulary_size,
    )  # fmt: skip


def _check_fields(body: CompletionBody) -> None:
    check_unsupported_account_fields(body)
    if body.suffix:
        raise Unsupported("text cannot be inserted before a suffix", "leave out suffix", param="suffix")
    if body.echo and body.logprobs is not None:
        raise Unsupported(
            "the prompt's own log probabilities are not known", "leave out echo or logprobs", param="echo"
        )
    check_stream_options(body)


def _decode_prompt(prompt: CompletionPrompt, session: ModelSession) -> str:
    return prompt if isinstance(prompt, str) else session.client.prompt_encoder.decode(prompt)


def parse_prompts(given: Any, limit: str, session: ModelSession, param: str) -> list[CompletionPrompt]:
    """One text, one list of token ids, or a list of either, as long as the limit of this name allows."""
    if isinstance(given, str):
        return [given]
    if all(_is_token_id(one) for one in given):
        return [_check_token_ids(given, session, param)]
    if len(given) > getattr(session.limits, limit):
        raise make_limit_error(f"{param} has {len(given)} entries", session.limits, limit, param)
    return [_parse_prompt(one, session, param) for one in given]


def _parse_prompt(given: Any, session: ModelSession, param: str) -> CompletionPrompt:
    if isinstance(given, str) and given:
        return given
    if isinstance(given, list) and given and all(_is_token_id(one) for one in given):
        return _check_token_ids(given, session, param)
    if given in ("", []):
        raise InvalidRequest(f"{param} has an empty entry", "give at least one token", param=param)
    raise InvalidRequest(f"{param} is a text, a list of token ids, or a list of either", param=param)


def _is_token_id(one: Any) -> bool:
    return isinstance(one, int) and not isinstance(one, bool)


def _check_token_ids(ids: list[int], session: ModelSession, param: str) -> tuple[int, ...]:
    known = session.client.prompt_encoder.vocabulary_size or 2**31
    if not 0 <= min(ids) <= max(ids) < known:
        raise InvalidRequest(
            f"{param} has token ids outside of 0 to {known - 1}",
            "token ids are those of this model's own tokenizer; or send text",
            param=param,
        )
    return tuple(ids)
