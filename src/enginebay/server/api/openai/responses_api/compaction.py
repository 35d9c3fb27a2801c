"""POST /v1/responses/compact: the model summarizes a conversation, so that it takes less context."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from enginebay.contract import Delta, GenerateRequest, TokenLogprobs
from enginebay.errors import RequestError
from enginebay.server.api.body_decoder import get_unknown_fields, read_body
from enginebay.server.api.openai import responses_input
from enginebay.server.api.openai.encoders.responses_encoder import encode_responses_usage
from enginebay.server.api.openai.encoders.responses_output import OutputParser
from enginebay.server.api.openai.reasoning.thought_plan import plan_thought
from enginebay.server.api.openai.responses_api.state_schemas import CompactBody, CompactionObject
from enginebay.server.api.openai.responses_api.stored_items import encode_summary, to_stored_item
from enginebay.server.api.openai.responses_api.turn import ResponseTurn, begin_turn
from enginebay.server.api.openai.sampling_params import read_sampling
from enginebay.server.api.openai.schema_fields import GenerationFields
from enginebay.server.encoding.response_writer import ResponseWriter
from enginebay.server.http.exchange import Exchange
from enginebay.server.requests.request_context import RequestContext
from enginebay.server.requests.run_generation import generate_response, prepare_request
from enginebay.server.requests.server_context import ServerContext
from enginebay.server.sessions.model_session import ModelSession
from enginebay.server.state.stored_records import make_id
from enginebay.text.output_events import AnswerText, OutputEvent

_encode = msgspec.json.Encoder().encode
_MAX_SUMMARY_TOKENS = 4096
_TASK = (
    "Summarize our conversation so far, so that you could continue it from your summary alone. Keep every fact, decision, "
    "name, number, file and open task. Answer with the summary only."
)


async def compact_response(context: ServerContext, request_context: RequestContext) -> None:
    body = read_body(CompactBody, context, request_context)
    request_context.prompt, request_context.cache_key = body.input, body.prompt_cache_key or ""
    turn = await begin_turn(context, request_context, body.input, body.previous_response_id)
    session, lora = await context.acquire_session(request_context, body.model)
    try:
        unknown = get_unknown_fields(context, request_context)
        request = await request_context.run_in_thread_if_large(_build_request, body, session, lora, turn, unknown)
        prepared = await prepare_request(request_context, session, request)
        planned, make_parser = await plan_thought(
            request_context, session, request, prepared, {}, lambda: None, max_tokens=0
        )
    except RequestError as error:
        raise responses_input.to_responses_error(error) from None
    kept = [to_stored_item(item) for item in (*turn.history, *turn.inputs) if _is_user_message(item)]
    parser = OutputParser(make_parser(), session.restore_markers)
    writer = CompactionWriter(request_context.exchange, session, kept, parser)
    await generate_response(request_context, session, writer, [planned])


def _build_request(
    body: CompactBody,
    session: ModelSession,
    lora: str | None,
    turn: ResponseTurn,
    unknown: responses_input.UnknownFields,
) -> GenerateRequest:
    items = [*turn.inputs, {"role": "user", "content": _TASK}]
    messages = responses_input.to_chat_messages(body.instructions, items, session.limits, turn.history, unknown)
    longest = min(_MAX_SUMMARY_TOKENS, session.limits.max_tokens or _MAX_SUMMARY_TOKENS)
    sampling = read_sampling(
        GenerationFields(model=body.model), session.sampling_defaults, session.limits,
        max_tokens=longest, logprobs=None, guided=None, vocabulary_size=session.client.prompt_encoder.vocabulary_size,
    )  # fmt: skip
    return GenerateRequest(messages=tuple(messages), sampling=sampling, lora=lora)


def _is_user_message(item: Mapping[str, Any]) -> bool:
    return item.get("type") in (None, "message") and item.get("role") == "user"


class CompactionWriter(ResponseWriter):
    """Collects the summary without thoughts, and responds with the user's messages and a compaction item."""

    def __init__(
        self, exchange: Exchange, session: ModelSession, kept: Sequence[dict[str, Any]], parser: OutputParser
    ) -> None:
        super().__init__(exchange, session)
        self._kept = kept
        self._parser = parser
        self._texts: list[str] = []

    def on_token(self, text: str, token_id: int) -> None:
        self.token_ids.append(token_id)
        self._append(self._parser.feed(text, (token_id,), ()))

    def on_delta(self, delta: Delta) -> None:
        self._count_delta(delta)
        self._append(self._parser.feed(delta.text, delta.token_ids, ()))
        if delta.finish_reason is not None:
            self.finish_reason = delta.finish_reason.value

    def _append(self, pairs: Sequence[tuple[OutputEvent, Sequence[TokenLogprobs]]]) -> None:
        self._texts += [event.text for event, _ in pairs if isinstance(event, AnswerText)]

    def write_completed(self) -> None:
        self._append(self._parser.end())
        summary = "".join(self._texts).strip()
        is_whole = summary != "" and self.finish_reason != "length"
        content = encode_summary(summary)
        compaction = {"type": "compaction", "id": make_id("cmp"), "encrypted_content": content}
        answer = CompactionObject(
            id=make_id("resp"), created_at=int(time.time()), status="completed" if is_whole else "incomplete",
            output=[*self._kept, compaction], usage=encode_responses_usage(self.usage, self._parser.reasoning_tokens),
        )  # fmt: skip
        self.exchange.respond(200, _encode(answer))
