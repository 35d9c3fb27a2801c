"""POST /v1/completions"""

from __future__ import annotations

from typing import Any

from enginebay.contract import GenerateRequest, Sampling
from enginebay.errors import InvalidRequest, Unsupported
from enginebay.server.api.body_decoder import get_unknown_fields, read_body
from enginebay.server.api.openai import sampling_params
from enginebay.server.api.openai.encoders.choices_encoder import plan_token_ids
from enginebay.server.api.openai.encoders.completion_encoder import CompletionEncoder
from enginebay.server.api.openai.schemas import CompletionBody
from enginebay.server.api.openai.template_options import build_template_options
from enginebay.server.encoding.choice_state import ChoiceState
from enginebay.server.encoding.choices_json_writer import ChoicesJsonWriter
from enginebay.server.encoding.choices_sse_writer import ChoicesSseWriter
from enginebay.server.requests.request_context import RequestContext
from enginebay.server.requests.run_generation import generate_response, prepare_request
from enginebay.server.requests.server_context import ServerContext
from enginebay.server.sessions.model_session import ModelSession
from enginebay.util.limit_errors import make_limit_error

DEFAULT_MAX_TOKENS = 16  # OpenAI's default for this endpoint

CompletionPrompt = str | tuple[int, ...]


async def create_completion(context: ServerContext, request_context: RequestContext) -> None:
    body = read_body(CompletionBody, context, request_context)
    session, lora = await context.acquire_session(request_context, body.model, stream=bool(body.stream))
    limits = session.limits
    _check_fields(body)
    prompts = await request_context.run_in_thread_if_large(parse_prompts, body.prompt, "prompts", session, "prompt")
    request_context.stream = bool(body.stream)
    request_context.prompt = body.prompt
    unknown = get_unknown_fields(context, request_context)
    sampling_params.note_unknown_format_keys(body.response_format, unknown)
    request_context.cache_key = body.prompt_cache_key or ""
    sampling = await request_context.run_in_thread_if_large(_read_sampling, body, session)
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
            session,
            request,
            truncate=body.truncate_prompt_tokens,
            requested_max_tokens=body.max_tokens,
            template_options=build_template_options(None, allow_special_tokens=body.allow_special_tokens),
        )
        for request in requests
    ]
    echoes = [_decode_prompt(prompt, session) if body.echo else "" for prompt in prompts for _ in range(sampling.n)]
    choices = [ChoiceState(index) for index in range(len(prompts) * sampling.n)]
    token_ids, prompt_ids = plan_token_ids(request_context, body.return_token_ids, choices, prepared)
    encoder = CompletionEncoder(
        id=f"cmpl-{request_context.id}",
        created=int(request_context.started_at),
        model=body.model,
        fingerprint=session.engine,
        echoes=echoes,
        with_logprobs=sampling.logprobs is not None,
        include_usage=body.wants_usage,
        include_timing=body.wants_timing,
        include_energy=body.wants_energy,
        token_bytes=session.client.prompt_encoder.get_token_bytes,
        token_ids=token_ids,
        prompt_ids=prompt_ids,
    )
    writer = (
        ChoicesSseWriter(request_context.exchange, session, choices, encoder)
        if request_context.stream
        else ChoicesJsonWriter(request_context.exchange, session, choices, encoder.encode_body)
    )
    await generate_response(request_context, session, writer, prepared)


def _read_sampling(body: CompletionBody, session: ModelSession) -> Sampling:
    default = None
    if "max_tokens" not in session.sampling_defaults:
        default = min(DEFAULT_MAX_TOKENS, session.limits.max_tokens or DEFAULT_MAX_TOKENS)
    return sampling_params.read_sampling(
        body, session.sampling_defaults, session.limits,
        max_tokens=default if body.max_tokens is None else body.max_tokens, logprobs=body.logprobs,
        guided=sampling_params.read_constraint(body, session.limits).guided,
        vocabulary_size=session.client.prompt_encoder.vocabulary_size,
    )  # fmt: skip


def _check_fields(body: CompletionBody) -> None:
    if body.echo and body.logprobs is not None:
        raise Unsupported("echo and logprobs are mutually exclusive", "remove one of them", param="echo")
    sampling_params.check_stream_options(body)


def _decode_prompt(prompt: CompletionPrompt, session: ModelSession) -> str:
    return prompt if isinstance(prompt, str) else session.client.prompt_encoder.decode(prompt)


def parse_prompts(value: Any, limit: str, session: ModelSession, param: str) -> list[CompletionPrompt]:
    """Parse a text, a list of token ids, or a list of either. `limit`: the setting that bounds the list."""
    if isinstance(value, str):
        return [value]
    if all(_is_token_id(item) for item in value):
        return [_check_token_ids(value, session, param)]
    if len(value) > getattr(session.limits, limit):
        raise make_limit_error(f"{param} has {len(value)} entries", session.limits, limit, param)
    return [_parse_prompt(item, session, param) for item in value]


def _parse_prompt(value: Any, session: ModelSession, param: str) -> CompletionPrompt:
    if isinstance(value, str) and value:
        return value
    if isinstance(value, list) and value and all(_is_token_id(item) for item in value):
        return _check_token_ids(value, session, param)
    if value in ("", []):
        raise InvalidRequest(f"{param} has an empty entry", "send at least one token", param=param)
    raise InvalidRequest(f"{param} must be a string, a list of token ids, or a list of either", param=param)


def _is_token_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_token_ids(ids: list[int], session: ModelSession, param: str) -> tuple[int, ...]:
    vocabulary_size = session.client.prompt_encoder.vocabulary_size or 2**31
    if not 0 <= min(ids) <= max(ids) < vocabulary_size:
        raise InvalidRequest(
            f"{param} has token ids outside 0 to {vocabulary_size - 1}",
            "use token ids of this model's tokenizer, or send text",
            param=param,
        )
    return tuple(ids)
