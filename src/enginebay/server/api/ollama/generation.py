"""POST /api/chat and /api/generate"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

from enginebay.contract import GenerateRequest, Sampling
from enginebay.errors import InvalidRequest, RequestError, UnknownModel
from enginebay.server.api.body_decoder import read_body
from enginebay.server.api.ollama import ollama_input
from enginebay.server.api.ollama.keep_alive import KeepAlivePlan
from enginebay.server.api.ollama.ollama_encoder import OllamaEncoder, OllamaJsonWriter, OllamaStreamWriter, format_time
from enginebay.server.api.ollama.schemas import (
    JsonObject,
    OllamaChatBody,
    OllamaGenerateBody,
    OllamaOptions,
    OllamaOutputBody,
)
from enginebay.server.api.openai import sampling_params
from enginebay.server.api.openai.chat_plan import ChatPlan, check_message_count, plan_chat
from enginebay.server.api.openai.schemas import ChatBody, CompletionBody
from enginebay.server.api.openai.template_options import build_template_options
from enginebay.server.api.openai.tool_use import plan_tools
from enginebay.server.encoding.choice_state import ChoiceState
from enginebay.server.encoding.response_writer import ResponseWriter
from enginebay.server.requests.request_context import RequestContext
from enginebay.server.requests.run_generation import add_translation_headers, generate_response, prepare_request
from enginebay.server.requests.server_context import ServerContext
from enginebay.server.sessions.model_catalog import ModelCatalog
from enginebay.server.sessions.model_session import ModelSession

_DEFAULT_TAG = ":latest"


def resolve_model(catalog: ModelCatalog, name: str) -> str:
    """Return the model's name on this server: `:latest` is what Ollama's clients add. Raise `UnknownModel`."""
    for candidate in (name, name.removesuffix(_DEFAULT_TAG)):
        if candidate in catalog.names:
            return candidate
    raise UnknownModel(
        f"model {name[:100]!r} not found",
        f"available: {', '.join(catalog.names)}; to add another: `bay models pull`, then list it in the configuration",
        param="model",
    )


def read_options(context: ServerContext, request_context: RequestContext, options: JsonObject | None) -> OllamaOptions:
    refuse_unknown = context.config.unknown_fields == "refuse"
    return ollama_input.read_options(options, request_context.ignored, refuse_unknown=refuse_unknown)


async def chat(context: ServerContext, request_context: RequestContext) -> None:
    body = read_body(OllamaChatBody, context, request_context)
    call = _start_call(context, request_context, body, "chat")
    options = read_options(context, request_context, body.options)
    if not body.messages:
        await call.load_or_unload()
        return
    check_message_count(body.messages, context.config.limits)
    request_context.prompt = body.messages
    chat_body = await request_context.run_in_thread_if_large(ollama_input.to_chat_body, body, options)
    await call.answer_chat(chat_body, options)


async def generate(context: ServerContext, request_context: RequestContext) -> None:
    body = read_body(OllamaGenerateBody, context, request_context)
    call = _start_call(context, request_context, body, "generate")
    ollama_input.check_raw_fields(body)
    options = read_options(context, request_context, body.options)
    if not body.prompt and not body.images:
        await call.load_or_unload()
        return
    request_context.prompt = body.prompt
    if body.raw:
        await call.continue_text(body.prompt or "", options)
    else:
        await call.answer_chat(ollama_input.to_generate_chat(body, options), options)


def _start_call(
    context: ServerContext,
    request_context: RequestContext,
    body: OllamaOutputBody,
    endpoint: Literal["chat", "generate"],
) -> OllamaCall:
    request_context.takes_comments = False  # its streams are lines of JSON
    request_context.stream = body.stream is not False
    keep_alive = KeepAlivePlan(context, request_context, body.keep_alive)
    return OllamaCall(context, request_context, body, endpoint, resolve_model(context.catalog, body.model), keep_alive)


@dataclass(frozen=True, slots=True)
class OllamaCall:
    """One request to /api/chat or /api/generate."""

    context: ServerContext
    request_context: RequestContext
    body: OllamaOutputBody
    endpoint: Literal["chat", "generate"]
    model: str  # its name on this server
    keep_alive: KeepAlivePlan

    async def load_or_unload(self) -> None:
        """Respond to a request without a prompt, which loads the model, or unloads it with keep_alive 0."""
        exchange = self.request_context.exchange
        if self.keep_alive.seconds == 0:
            self._record_model()
            await self.keep_alive.unload(self.model)
            add_translation_headers(self.request_context)
            exchange.respond(200, self._make_encoder().encode_empty("unload"))
            return
        session, _ = await self.context.acquire_session(self.request_context, self.model)
        _check_task(session)
        _check_unused_fields(self.body, session)
        add_translation_headers(self.request_context)
        exchange.respond(200, self._make_encoder().encode_empty("load"))
        await self.keep_alive.apply()

    def _record_model(self) -> None:
        entry, _ = self.context.catalog.find(self.model)
        request_context = self.request_context
        request_context.catalog_entry, request_context.model = entry, self.model
        request_context.labels = (entry.name, entry.primary.kind)

    async def answer_chat(self, chat: ChatBody, options: OllamaOptions) -> None:
        session, lora = await self._acquire(options)
        plan = await plan_chat(self.request_context, session, lora, chat)
        for notes in (self.request_context.ignored, self.request_context.translated):
            ollama_input.rename_notes(notes)
        await self._respond(session, plan)

    async def continue_text(self, prompt: str, options: OllamaOptions) -> None:
        """Continue a raw prompt."""
        if self.body.think is not None:
            self.request_context.ignored["think"] = "a raw prompt has no chat template"
        session, lora = await self._acquire(options)
        text = CompletionBody(
            model=self.model,
            prompt=prompt,
            **ollama_input.translate_options(options),
            **ollama_input.translate_format(self.body.format),
        )
        read = partial(_read_raw_sampling, text, self.body, session)
        sampling = await self.request_context.run_in_thread_if_large(read)
        request = await prepare_request(
            self.request_context, session, GenerateRequest(text=prompt, sampling=sampling, lora=lora),
            requested_max_tokens=text.max_tokens, max_tokens_param="options.num_predict",
            template_options=build_template_options(None),
        )  # fmt: skip
        await self._respond(session, ChatPlan(request, lambda: None, lambda error: error))

    async def _acquire(self, options: OllamaOptions) -> tuple[ModelSession, str | None]:
        request_context = self.request_context
        session, lora = await self.context.acquire_session(request_context, self.model)
        _check_task(session)
        context_length = session.client.facts.context_length
        ollama_input.note_options(options, context_length, request_context.ignored, request_context.translated)
        return session, lora

    async def _respond(self, session: ModelSession, plan: ChatPlan) -> None:
        writer = self._make_writer(session, plan)
        try:
            await generate_response(self.request_context, session, writer, [plan.request])
        except RequestError as error:
            raise plan.rename_param(error) from None
        await self.keep_alive.apply()

    def _make_encoder(self, session: ModelSession | None = None, with_logprobs: bool = False) -> OllamaEncoder:
        request_context = self.request_context
        return OllamaEncoder(
            endpoint=self.endpoint,
            model=self.body.model,
            created_at=format_time(request_context.started_at),
            received_at=request_context.exchange.received_at,
            token_bytes=session.client.prompt_encoder.get_token_bytes if session is not None else lambda _: b"",
            with_logprobs=with_logprobs,
        )

    def _make_writer(self, session: ModelSession, plan: ChatPlan) -> ResponseWriter:
        exchange, choice = self.request_context.exchange, ChoiceState(0, plan.make_parser())
        encoder = self._make_encoder(session, plan.sampling.logprobs is not None)
        if self.request_context.stream:
            return OllamaStreamWriter(exchange, session, [choice], encoder)
        return OllamaJsonWriter(exchange, session, choice, encoder)


def _check_task(session: ModelSession) -> None:
    if session.client.handle.task != "generate":
        raise InvalidRequest(f"{session.name!r} does not support generate", "use /api/embed", param="model")


def _check_unused_fields(body: OllamaOutputBody, session: ModelSession) -> None:
    """Raise for what a request that only loads the model need not have, but has wrong."""
    fields = ollama_input.translate_format(body.format)
    constraint = sampling_params.read_constraint(CompletionBody(model=body.model, prompt="", **fields), session.limits)
    tools = ollama_input.translate_tools(body.tools) if isinstance(body, OllamaChatBody) else None
    plan_tools(tools, None, None, session.limits, session, constraint)


def _read_raw_sampling(text: CompletionBody, body: OllamaOutputBody, session: ModelSession) -> Sampling:
    if body.top_logprobs and not body.logprobs:
        raise InvalidRequest("top_logprobs requires logprobs", "set logprobs to true", param="top_logprobs")
    return sampling_params.read_sampling(
        text, session.sampling_defaults, session.limits,
        max_tokens=text.max_tokens, logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        guided=sampling_params.read_constraint(text, session.limits).guided,
        vocabulary_size=session.client.prompt_encoder.vocabulary_size,
    )  # fmt: skip
