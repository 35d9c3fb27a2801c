"""Renders chat messages to text and token ids, for every engine.

    renderer = load_renderer(path)                                  # a model directory or a GGUF file
    text = renderer.render(messages, tools=tools)
    ids = renderer.encode(tokenizer, messages, tools=tools)         # for engines

Templates come from chat_template.jinja, tokenizer_config.json or the GGUF file. They run in the sandbox of
`template_sandbox.py` with the variables that Transformers sets. Raises `InvalidRequest` for messages that are invalid
or that the template rejects, `ModelInvalid` for a broken template, `Unsupported` for a model without one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from enginebay.errors import EnginebayError, InvalidRequest, ModelInvalid, Unsupported
from enginebay.text.chat.chat_messages import normalize_messages
from enginebay.text.gguf.gguf_reader import read_gguf
from enginebay.text.reasoning.reasoning_history import place_thoughts
from enginebay.text.tokenization.special_text import Escaped, SpecialText
from enginebay.text.tokenization.tokenizer import Tokenizer, load_special_tokens

DEFAULT_TEMPLATE, TOOL_USE_TEMPLATE = "default", "tool_use"
_CONTINUE_TAG = "CONTINUE_FINAL_MESSAGE_TAG "

Messages = Sequence[Mapping[str, Any]]


class ChatRenderer:
    """Renders the chats of one model. Thread-safe."""

    def __init__(self, templates: Mapping[str, str], special_tokens: Mapping[str, str]) -> None:
        self.templates = dict(templates)
        self.special_tokens = dict(special_tokens)
        for source in self.templates.values():
            _check_syntax(source)

    @property
    def available(self) -> bool:
        """Whether the model has a default chat template."""
        return DEFAULT_TEMPLATE in self.templates

    def render(self, messages: Messages, **options: Any) -> str:
        """Render a chat to text. Options are those of `render_escaped`."""
        return self.render_escaped(messages, None, **options)[0]

    def render_escaped(
        self,
        messages: Messages,
        special_text: SpecialText | None,
        /,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> tuple[str, dict[str, str]]:
        """Render a chat to text, with stand-ins for special tokens that the request spells, and what they stand for.

        `variables` (`enable_thinking`, `date_string`, …) go to the template unchanged.
        """
        from enginebay.text.chat.template_sandbox import reads_content_parts

        if continue_final_message and add_generation_prompt:
            raise InvalidRequest(
                "continue_final_message and add_generation_prompt are mutually exclusive",
                "set add_generation_prompt to false to continue the last message",
                param="continue_final_message",
            )
        source = self._select_template(tools)
        normalized = normalize_messages(
            messages, keep_parts=reads_content_parts(source), supports_developer="developer" in source
        )
        place_thoughts(normalized, source)
        requested = {
            **variables,
            "messages": normalized,
            "tools": _copy_objects(tools, "tools"),
            "documents": _copy_objects(documents, "documents"),
        }
        literals: dict[str, str] = {}
        if special_text is not None and (escaped := _escape_request(requested, special_text)) is not None:
            requested, literals = escaped
        final = _tag_final_message(requested["messages"]) if continue_final_message else None
        fixed = {**self.special_tokens, **requested, "add_generation_prompt": add_generation_prompt}
        text = _render_template(source, fixed)
        return text if final is None else _cut_after_tag(text, final), literals

    def encode(self, tokenizer: Tokenizer, messages: Messages, **options: Any) -> list[int]:
        """Return the token ids of a chat. The template writes all special tokens, so none are added."""
        return tokenizer.encode(self.render(messages, **options), add_special=False)

    def _select_template(self, tools: Sequence[Any] | None) -> str:
        if tools and TOOL_USE_TEMPLATE in self.templates:
            return self.templates[TOOL_USE_TEMPLATE]
        if DEFAULT_TEMPLATE not in self.templates:
            names = ", ".join(sorted(self.templates))
            raise Unsupported(
                f"the model has no chat template{f' named {DEFAULT_TEMPLATE!r}, only {names}' if names else ''}",
                "send a plain prompt, or add a chat_template.jinja to the model",
                param="messages",
            )
        return self.templates[DEFAULT_TEMPLATE]


def _escape_request(requested: dict[str, Any], special_text: SpecialText) -> Escaped | None:
    """Escape the special tokens in a request, also those that it spells in several parts of one message."""
    for message in requested["messages"]:
        parts = message["content"]
        if isinstance(parts, list) and len(parts) > 1:
            texts = [part["text"] for part in parts if part["type"] == "text"]
            joined = "".join(texts)
            if special_text.count(joined) != sum(map(special_text.count, texts)):
                others = [part for part in parts if part["type"] != "text"]
                message["content"] = [*others, {"type": "text", "text": joined}]
    try:
        return special_text.escape(requested)
    except RecursionError:
        raise InvalidRequest("the request is nested too deeply", param="messages") from None


def load_renderer(path: Path) -> ChatRenderer:
    """Return the renderer of a model directory or a GGUF file. Without a template, `render` raises."""
    return ChatRenderer(load_templates(path), load_special_tokens(path))


def load_templates(path: Path) -> dict[str, str]:
    """Return the chat templates of a model by name; the usual one is `default`."""
    if path.is_dir():
        return _load_templates_from_directory(path)
    file = read_gguf(path)
    named = {
        key.removeprefix("tokenizer.chat_template."): value
        for key, value in file.metadata.items()
        if key.startswith("tokenizer.chat_template.") and isinstance(value, str)
    }
    return named if file.chat_template is None else {**named, DEFAULT_TEMPLATE: file.chat_template}


def _load_templates_from_directory(folder: Path) -> dict[str, str]:
    """Load a directory's templates. Files override tokenizer_config.json, as in Transformers."""
    named = {file.stem: _read_text(file) for file in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
    if (folder / "chat_template.jinja").is_file():
        return {**named, DEFAULT_TEMPLATE: _read_text(folder / "chat_template.jinja")}
    config = folder / "tokenizer_config.json"
    if not config.is_file():
        return named
    try:
        declared = json.loads(_read_text(config)).get("chat_template")
    except (ValueError, AttributeError) as error:
        raise ModelInvalid(f"{config} cannot be read: {error}", "fetch the model again") from error
    if isinstance(declared, list):
        return {**named, **{entry["name"]: entry["template"] for entry in declared}}
    return {**named, DEFAULT_TEMPLATE: declared} if isinstance(declared, str) else named


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ModelInvalid(f"{path} cannot be read: {error}", "fetch the model again") from error


def _check_syntax(source: str) -> None:
    from jinja2 import TemplateSyntaxError

    from enginebay.text.chat.template_sandbox import compile_template

    try:
        compile_template(source)
    except TemplateSyntaxError as error:
        raise ModelInvalid(
            f"the model's chat template is invalid: {error.message} (line {error.lineno})", "fix chat_template.jinja"
        ) from error


def _render_template(source: str, variables: Mapping[str, Any]) -> str:
    from enginebay.text.chat.template_sandbox import compile_template

    try:
        return compile_template(source).render(**variables)
    except EnginebayError:
        raise
    except Exception as error:  # templates are programs: they can raise anything
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InvalidRequest(
            f"the model's chat template rejects these messages: {reason}",
            "see the model card for the supported format",
            param="messages",
        ) from error


def _copy_objects(values: Sequence[Mapping[str, Any]] | None, name: str) -> list[dict[str, Any]] | None:
    if values is None:
        return None
    if isinstance(values, (str, Mapping)) or not all(isinstance(value, Mapping) for value in values):
        raise InvalidRequest(f"{name} must be a list of objects", param=name)
    try:
        return [dict(deepcopy(value)) for value in values]
    except RecursionError:
        raise InvalidRequest(f"{name} is nested too deeply", param=name) from None


def _tag_final_message(chat: list[dict[str, Any]]) -> str:
    """Append a tag to the last message, to find its end in the text. Return the message's text."""
    content = chat[-1]["content"]
    if isinstance(content, str):
        chat[-1]["content"] = content + _CONTINUE_TAG
        return content
    if not content or "text" not in content[-1]:
        raise InvalidRequest("the last message has no text to continue", param="continue_final_message")
    final: str = content[-1]["text"]
    content[-1]["text"] = final + _CONTINUE_TAG
    return final


def _cut_after_tag(text: str, final: str) -> str:
    tag = _CONTINUE_TAG.strip()
    if final.strip() not in text or tag not in text:
        raise InvalidRequest(
            "cannot continue the last message: the chat template drops part of it",
            param="continue_final_message",
        )
    end = text.rindex(tag)
    # A template that trims messages strips the tag's trailing space, and would strip the message's too.
    return text[:end] if text[end : end + len(_CONTINUE_TAG)] == _CONTINUE_TAG else text[:end].rstrip()
