"""Prompts from a file with one JSON object per line.

{"prompt": "text"}   {"prompt": [1, 2, 3]}   {"messages": [{"role": "user", "content": "hi"}], "output_tokens": 64}
`max_tokens` is read as `output_tokens`; `group` names the kind of a request in a mix; other keys are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from enginebay.errors import ConfigError, EnginebayError
from enginebay.lab.workload.request_records import Prompt
from enginebay.lab.workload.workload_spec import ChatRender, Message, TextTokenizer

LINE_FORMAT_HINT = 'each line is {"prompt": "text"}, {"prompt": [token ids]} or {"messages": [...]}'
PromptLine = tuple[Prompt, int | None, str]


def read_prompt_lines(path: Path) -> list[PromptLine]:
    """Return the prompt, requested output tokens and group of each line."""
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}", "use a text file", param="workload.path") from error
    prompts = [_parse_line(f"{path}, line {number}", line) for number, line in enumerate(lines, 1) if line.strip()]
    if not prompts:
        raise ConfigError(f"{path} is empty", LINE_FORMAT_HINT, param="workload.path")
    return prompts


def _parse_line(where: str, line: str) -> PromptLine:
    try:
        data = json.loads(line)
    except ValueError:
        raise ConfigError(f"{where}: not JSON", LINE_FORMAT_HINT, param="workload.path") from None
    if not isinstance(data, dict) or ("prompt" in data) == ("messages" in data):
        raise ConfigError(f"{where}: needs either prompt or messages", LINE_FORMAT_HINT, param="workload.path")
    output_tokens = data.get("output_tokens", data.get("max_tokens"))
    if output_tokens is not None and (
        isinstance(output_tokens, bool) or not isinstance(output_tokens, int) or output_tokens < 1
    ):
        raise ConfigError(
            f"{where}: output_tokens must be 1 or more, not {output_tokens!r}", LINE_FORMAT_HINT, param="workload.path"
        )
    prompt = _parse_messages(data["messages"]) if "messages" in data else _parse_prompt(data["prompt"])
    if not prompt:
        raise ConfigError(f"{where}: the prompt is empty or of the wrong kind", LINE_FORMAT_HINT, param="workload.path")
    return prompt, output_tokens, str(data.get("group", ""))


def _parse_prompt(value: Any) -> Prompt | None:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(
        isinstance(token, int) and not isinstance(token, bool) and token >= 0 for token in value
    ):
        return tuple(value)
    return None


def _parse_messages(value: Any) -> tuple[Message, ...] | None:
    valid = isinstance(value, list) and all(
        isinstance(message, dict) and isinstance(message.get("role"), str) for message in value
    )
    return tuple(value) if valid else None


def count_tokens(prompt: Prompt, tokenizer: TextTokenizer | None, render: ChatRender | None) -> int | None:
    """Return the prompt length as the server will count it; None if unknown."""
    ids = encode_prompt(prompt, tokenizer, render)
    return None if ids is None else len(ids)


def encode_prompt(prompt: Prompt, tokenizer: TextTokenizer | None, render: ChatRender | None) -> Sequence[int] | None:
    """Return the prompt as the server will read it; None if unknown."""
    if isinstance(prompt, str):
        return None if tokenizer is None else tokenizer.encode(prompt, add_special=True)
    if _is_token_ids(prompt):
        return prompt  # type: ignore[return-value]
    if render is None:
        return None
    try:
        return render(prompt)  # type: ignore[arg-type]
    except EnginebayError:  # content this template cannot render, such as an image, may still work on the server
        return None


def cut_prompt(prompt: Prompt, max_tokens: int, tokenizer: TextTokenizer | None, render: ChatRender | None) -> Prompt:
    """Truncate a prompt to `max_tokens`; in a chat, the last text is shortened."""
    if not isinstance(prompt, str) and _is_token_ids(prompt):
        return prompt[:max_tokens]
    length = count_tokens(prompt, tokenizer, render)
    if length is None or tokenizer is None:
        raise ConfigError(
            "max_input_tokens needs the model's tokenizer, and its chat template for messages",
            "pass the model's files, or remove max_input_tokens",
            param="workload.max_input_tokens",
        )
    shortened, excess = prompt, length - max_tokens
    while excess > 0:
        # Truncated text may re-encode to more tokens, so count the excess again.
        shortened = _shorten_prompt(shortened, excess, tokenizer)
        excess = (count_tokens(shortened, tokenizer, render) or 0) - max_tokens
    return shortened


def _is_token_ids(prompt: Prompt) -> bool:
    return isinstance(prompt, tuple) and isinstance(prompt[0], int)


def _shorten_prompt(prompt: Prompt, excess: int, tokenizer: TextTokenizer) -> Prompt:
    if isinstance(prompt, str):
        return _shorten_text(prompt, excess, tokenizer)
    messages: Sequence[Any] = prompt
    last = max((index for index, message in enumerate(messages) if _message_text(message)), default=None)
    if last is None:
        raise _cannot_shorten_error()
    changed = {
        **messages[last],
        "content": _shorten_text(_message_text(messages[last]), excess, tokenizer, empty=last > 0),
    }
    return (*messages[:last], changed, *messages[last + 1 :])


def _message_text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else ""


def _shorten_text(text: str, excess: int, tokenizer: TextTokenizer, empty: bool = False) -> str:
    ids = tokenizer.encode(text, add_special=False)
    remaining = ids[: max(len(ids) - excess, 0)]
    shorter = tokenizer.decode(remaining, skip_special=False).rstrip("\ufffd")  # a partial character
    if not shorter and not empty:
        raise _cannot_shorten_error()
    return shorter if len(shorter) < len(text) else text[:-1]


def _cannot_shorten_error() -> ConfigError:
    return ConfigError(
        "max_input_tokens leaves nothing of a prompt", "raise max_input_tokens", param="workload.max_input_tokens"
    )
