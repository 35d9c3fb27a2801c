"""Plans the thought of a chat: whether the prompt opens it, when it ends, and what binds the answer after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from enginebay.contract import GenerateRequest, Sampling
from enginebay.server.encoding.thought_listener import ThoughtLimits
from enginebay.server.requests.request_context import RequestContext
from enginebay.server.sessions.model_session import ModelSession
from enginebay.text.output_events import OutputEventParser
from enginebay.text.reasoning import ReasoningFormat
from enginebay.text.reasoning.reasoning_history import (
    REASONING_KEYS,
    ReasoningSlot,
    find_reasoning_slot,
    read_thought,
)

MakeParser = Callable[[], OutputEventParser | None]


async def plan_thought(
    request_context: RequestContext,
    session: ModelSession,
    request: GenerateRequest,
    prepared: GenerateRequest,
    template_options: Mapping[str, Any],
    make_tool_parser: MakeParser,
    max_tokens: int | None = None,
) -> tuple[GenerateRequest, MakeParser]:
    """Return the engine's request and the parsers of its output, which split thoughts from the answer.

    `request`: with messages. `prepared`: the same with token ids. `max_tokens`: of the thought. A thought that ends early, or
    an answer with a constraint, is planned in `request_context.thought_limits`.
    """
    reasoning_format = session.reasoning_format
    if reasoning_format is None:
        return prepared, make_tool_parser
    prompt_end = await _read_prompt_end(session, reasoning_format, request, prepared, template_options)
    guided = prepared.sampling.guided
    if prepared.token_ids is not None and (guided is not None or max_tokens is not None):
        prepared, prompt_end = await _limit_thought(
            request_context, session, reasoning_format, prepared, prompt_end, max_tokens
        )
    return prepared, partial(_make_parser, reasoning_format, make_tool_parser, prompt_end)


def _make_parser(
    reasoning_format: ReasoningFormat, make_tool_parser: MakeParser, prompt_end: str
) -> OutputEventParser | None:
    return reasoning_format.create_parser(make_tool_parser(), prompt_end)


def check_thoughts(
    request_context: RequestContext, session: ModelSession, messages: Sequence[Mapping[str, Any]]
) -> None:
    """Check the thoughts of earlier turns, and note if the chat template has no place for them."""
    thoughts = [
        read_thought(message, f"messages[{number}]")
        for number, message in enumerate(messages)
        if message.get("role") == "assistant" and not message.keys().isdisjoint(REASONING_KEYS)
    ]
    if session.client.spec.renders or not any(thoughts):
        return
    if find_reasoning_slot(session.client.prompt_encoder.chat_template) is ReasoningSlot.NONE:
        request_context.ignored["reasoning_content"] = "the chat template has no place for earlier thoughts"


async def _read_prompt_end(
    session: ModelSession,
    reasoning_format: ReasoningFormat,
    request: GenerateRequest,
    prepared: GenerateRequest,
    template_options: Mapping[str, Any],
) -> str:
    """Return the end of the prompt as text: it may open or close a thought."""
    if prepared.token_ids is None:
        return ""  # a remote server renders it, and its thoughts come with both tags
    if request.messages is not None and template_options.get("continue_final_message"):
        content = request.messages[-1].get("content")
        if isinstance(content, str) and (opening := reasoning_format.find_unclosed(content)):
            return opening
    encoder = session.client.prompt_encoder
    text = encoder.decode_end(prepared.token_ids)
    if text is not None or request.messages is None:
        return text or ""
    options = {name: value for name, value in template_options.items() if name != "allow_special_tokens"}
    return await encoder.render_async(request.messages, **options)


async def _limit_thought(
    request_context: RequestContext,
    session: ModelSession,
    reasoning_format: ReasoningFormat,
    prepared: GenerateRequest,
    prompt_end: str,
    max_tokens: int | None,
) -> tuple[GenerateRequest, str]:
    """Return the request for the thought, or for an answer without one, and the end of its prompt."""
    sampling, encoder = prepared.sampling, session.client.prompt_encoder
    binds_answer = sampling.guided is not None
    if binds_answer and reasoning_format.is_closed_by(prompt_end):
        return prepared, prompt_end
    is_opened = reasoning_format.is_opened_by(prompt_end)
    if max_tokens == 0 or (binds_answer and not _is_single(sampling)):
        if max_tokens != 0:
            request_context.translated["reasoning"] = "no thought: the output is constrained and has several choices"
        lead = reasoning_format.end_thought if is_opened else reasoning_format.skip_thought
        ids = await encoder.encode_text(lead, add_special=False)
        return _extend_prompt(prepared, ids, session.client.facts.context_length), prompt_end + lead
    if not _is_single(sampling):
        request_context.ignored["max_reasoning_tokens"] = "applies only to requests with one choice"
        return prepared, prompt_end
    leads = (reasoning_format.after_thought, reasoning_format.end_thought, reasoning_format.skip_thought,
             reasoning_format.without_thought)  # fmt: skip
    known = {lead: await encoder.encode_text(lead, add_special=False) for lead in leads if lead}
    request_context.thought_limits = ThoughtLimits(
        reasoning_format, prompt_end, prepared, binds_answer, max_tokens, session.client.facts.context_length,
        partial(_encode, known, encoder.encode_at_once),
    )  # fmt: skip
    stop = () if binds_answer else sampling.stop  # text that may be a stop string would come after its token ids
    return replace(prepared, sampling=replace(sampling, guided=None, stop=stop)), prompt_end


def _encode(known: Mapping[str, Sequence[int]], encode: Callable[[str], Sequence[int]], text: str) -> Sequence[int]:
    return known[text] if text in known else encode(text)


def _is_single(sampling: Sampling) -> bool:
    return sampling.n == 1 and (sampling.best_of or 1) == 1 and (sampling.num_beams or 1) == 1


def _extend_prompt(prepared: GenerateRequest, ids: Sequence[int], context_length: int) -> GenerateRequest:
    """Add token ids to the prompt, as far as the context allows."""
    token_ids = (*(prepared.token_ids or ()), *ids)
    available, sampling = context_length - len(token_ids), prepared.sampling
    if available < 1:
        return prepared
    if sampling.max_tokens is not None and sampling.max_tokens > available:
        min_tokens = min(sampling.min_tokens or 0, available) or None
        sampling = replace(sampling, max_tokens=available, min_tokens=min_tokens)
    return replace(prepared, token_ids=token_ids, sampling=sampling)
