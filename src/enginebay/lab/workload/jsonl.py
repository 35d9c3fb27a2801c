"""Prompts from a file: one JSON object on each line.

{"prompt": "text"}   {"prompt": [1, 2, 3]}   {"messages": [{"role": "user", "content": "hi"}], "output_tokens": 64}
`max_tokens` is read as `output_tokens`; `group` names the kind of a request in a mix; other keys mean nothing here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from enginebay.errors import ConfigError, EnginebayError
from enginebay.lab.requests import Prompt
from enginebay.lab.workload.spec import Message, Render, TextTokenizer

NEEDED = 'each line is {"prompt": "text"}, {"prompt": [token ids]} or {"messages": [...]}'
Line = tuple[Prompt, int | None, str]


def read_lines(path: Path) -> list[Line]:
    """Prompt, wanted output tokens and group of each line."""
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}", "name a text file", param="workload.path") from error
    found = [_line(f"{path}, line {number}", line) for number, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise ConfigError(f"{path} is empty", NEEDED, param="workload.path")
    return found


def _line(where: str, line: str) -> Line:
    try:
        data = json.loads(line)
    except ValueError:
        raise ConfigError(f"{where}: not JSON", NEEDED, param="workload.path") from None
    if not isinstance(data, dict) or ("prompt" in data) == ("messages" in data):
        raise ConfigError(f"{where}: needs either prompt or messages", NEEDED, param="workload.path")
    wanted = data.get("output_tokens", data.get("max_tokens"))
    if wanted is not None and (isinstance(wanted, bool) or not isinstance(wanted, int) or wanted < 1):
        raise ConfigError(f"{where}: output_tokens must be 1 or more, not {wanted!r}", NEEDED, param="workload.path")
    prompt = _messages(data["messages"]) if "messages" in data else _prompt(data["prompt"])
    if not prompt:
        raise ConfigError(f"{where}: the prompt is empty or of the wrong kind", NEEDED, param="workload.path")
    return prompt, wanted, str(data.get("group", ""))


def _prompt(value: Any) -> Prompt | None:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(
        isinstance(one, int) and not isinstance(one, bool) and one >= 0 for one in value
    ):
        return tuple(value)
    return None


def _messages(value: Any) -> tuple[Message, ...] | None:
    good = isinstance(value, list) and all(isinstance(one, dict) and isinstance(one.get("role"), str) for one in value)
    return tuple(value) if good else None


def count_tokens(prompt: Prompt, tokenizer: TextTokenizer | None, render: Render | None) -> int | None:
    """The length of a prompt as the server will count it; None where that cannot be known."""
    ids = token_ids(prompt, tokenizer, render)
    return None if ids is None else len(ids)


def token_ids(prompt: Prompt, tokenizer: TextTokenizer | None, render: Render | None) -> Sequence[int] | None:
    """A prompt as the server will read it; None where that cannot be known."""
    if isinstance(prompt, str):
        return None if tokenizer is None else tokenizer.encode(prompt, add_special=True)
    if _is_ids(prompt):
        return prompt  # type: ignore[return-value]
    if render is None:
        return None
    try:
        return render(prompt)  # type: ignore[arg-type]
    except EnginebayError:  # what this template does not know, an image for example, the server may
        return None


def cut_prompt(prompt: Prompt, most: int, tokenizer: TextTokenizer | None, render: Render | None) -> Prompt:
    """The beginning of a prompt, `most` tokens at most; of a chat the last text gives way."""
    if not isinstance(prompt, str) and _is_ids(prompt):
        return prompt[:most]
    length = count_tokens(prompt, tokenizer, render)
    if length is None or tokenizer is None:
        raise ConfigError(
            "max_input_tokens needs the model's tokenizer, and its chat template for messages",
            "name the model's files, or remove max_input_tokens",
            param="workload.max_input_tokens",
        )
    shortened, excess = prompt, length - most
    while excess > 0:
        # Text that is cut may take a token more than it had, so the excess is counted anew.
        shortened = _shorter(shortened, excess, tokenizer)
        excess = (count_tokens(shortened, tokenizer, render) or 0) - most
    return shortened


def _is_ids(prompt: Prompt) -> bool:
    return isinstance(prompt, tuple) and isinstance(prompt[0], int)


def _shorter(prompt: Prompt, excess: int, tokenizer: TextTokenizer) -> Prompt:
    if isinstance(prompt, str):
        return _shorter_text(prompt, excess, tokenizer)
    messages: Sequence[Any] = prompt
    last = max((place for place, one in enumerate(messages) if _text_of(one)), default=None)
    if last is None:
        raise _uncuttable()
    changed = {**messages[last], "content": _shorter_text(_text_of(messages[last]), excess, tokenizer, empty=last > 0)}
    return (*messages[:last], changed, *messages[last + 1 :])


def _text_of(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else ""


def _shorter_text(text: str, excess: int, tokenizer: TextTokenizer, empty: bool = False) -> str:
    ids = tokenizer.encode(text, add_special=False)
    kept = ids[: max(len(ids) - excess, 0)]
    shorter = tokenizer.decode(kept, skip_special=False).rstrip("\ufffd")  # half a character
    if not shorter and not empty:
        raise _uncuttable()
    return shorter if len(shorter) < len(text) else text[:-1]


def _uncuttable() -> ConfigError:
    return ConfigError(
        "max_input_tokens leaves nothing of a prompt", "raise max_input_tokens", param="workload.max_input_tokens"
    )
