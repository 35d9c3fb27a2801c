"""POST /v1/chat/completions"""

from __future__ import annotations

from enginebay.errors import RequestError
from enginebay.server.api.body_decoder import get_unknown_fields, read_body
from enginebay.server.api.fields.unknown_fields import note_unknown_keys
from enginebay.server.api.openai.chat_plan import ChatPlan, plan_chat
from enginebay.server.api.openai.encoders.chat_encoder import ChatEncoder
from enginebay.server.api.openai.encoders.choices_encoder import plan_token_ids
from enginebay.server.api.openai.reasoning.reasoning_switches import THINKING_KEYS
from enginebay.server.api.openai.sampling_params import note_unknown_format_keys
from enginebay.server.api.openai.schemas import ChatBody
from enginebay.server.encoding.choice_state import ChoiceState
from enginebay.server.encoding.choices_json_writer import ChoicesJsonWriter
from enginebay.server.encoding.choices_sse_writer import ChoicesSseWriter
from enginebay.server.encoding.response_writer import ResponseWriter
from enginebay.server.requests.request_context import RequestContext
from enginebay.server.requests.run_generation import generate_response
from enginebay.server.requests.server_context import ServerContext
from enginebay.server.sessions.model_session import ModelSession


async def create_chat_completion(context: ServerContext, request_context: RequestContext) -> None:
    body = read_body(ChatBody, context, request_context)
    session, lora = await context.acquire_session(request_context, body.model, stream=bool(body.stream))
    request_context.stream = bool(body.stream)
    request_context.prompt = body.messages
    request_context.cache_key = body.prompt_cache_key or ""
    unknown = get_unknown_fields(context, request_context)
    note_unknown_format_keys(body.response_format, unknown)
    if isinstance(body.thinking, dict):
        note_unknown_keys(body.thinking, THINKING_KEYS, "thinking", unknown)
    plan = await plan_chat(request_context, session, lora, body)
    try:
        await generate_response(
            request_context, session, _make_writer(request_context, session, body, plan), [plan.request]
        )
    except RequestError as error:
        raise plan.rename_param(error) from None


def _make_writer(
    request_context: RequestContext, session: ModelSession, body: ChatBody, plan: ChatPlan
) -> ResponseWriter:
    sampling = plan.sampling
    choices = [ChoiceState(index, plan.make_parser()) for index in range(sampling.n)]
    token_ids, prompt_ids = plan_token_ids(request_context, body.return_token_ids, choices, [plan.request])
    encoder = ChatEncoder(
        id=f"chatcmpl-{request_context.id}",
        created=int(request_context.started_at),
        model=body.model,
        fingerprint=session.engine,
        choices=sampling.n,
        with_logprobs=sampling.logprobs is not None,
        include_usage=body.wants_usage,
        include_timing=body.wants_timing,
        include_energy=body.wants_energy,
        token_bytes=session.client.prompt_encoder.get_token_bytes,
        token_ids=token_ids,
        prompt_ids=prompt_ids,
    )
    if request_context.stream:
        return ChoicesSseWriter(request_context.exchange, session, choices, encoder)
    return ChoicesJsonWriter(request_context.exchange, session, choices, encoder.encode_body)
