"""Recorded answers of tool-calling models through the fake engine and the whole server, read with the OpenAI SDK.

One server has one model for each tool format. A prompt names a recording, and the fake engine answers with its output,
one byte for each token: what is streamed is cut at every byte.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from enginebay.text.chat.plain_chat import render_plain
from enginebay.text.tool_calls import TOOL_CALL_FORMATS
from tests.integration.server.bay_process import BayProcess, run_server

FOLDER = Path(__file__).parents[2] / "recordings" / "tools"
RECORDINGS: dict[str, Any] = {path.stem: json.loads(path.read_text("utf-8")) for path in sorted(FOLDER.glob("*.json"))}
each = pytest.mark.parametrize("name", RECORDINGS)
TOOLS = RECORDINGS["hermes-parallel"]["tools"]  # get_weather and get_time


@pytest.fixture(scope="module")
def server() -> Iterator[BayProcess]:
    scripts = {prompt(name): recording["output"] for name, recording in RECORDINGS.items()}
    models = {
        name: {"engine": "fake", "tool_format": name, "fake": {"script_by_prompt": scripts}}
        for name in TOOL_CALL_FORMATS
        if name != "json"  # which is what a model without a chat template gets without being asked
    }
    models["json"] = {"engine": "fake", "fake": {"script_by_prompt": scripts}}
    with run_server(config={"models": models}) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: BayProcess) -> OpenAI:
    return server.openai()


def prompt(name: str) -> str:
    return f"<<{name}>>"


def build_chat_body(name: str, **more: Any) -> dict[str, Any]:
    recording = RECORDINGS[name]
    messages = [{"role": "user", "content": f"Go on with {prompt(name)}"}]
    return {"model": recording["format"], "messages": messages, "tools": recording["tools"], **more}


def build_response_body(name: str, **more: Any) -> dict[str, Any]:
    recording = RECORDINGS[name]
    tools = [{"type": "function", **tool["function"]} for tool in recording["tools"]]
    return {"model": recording["format"], "input": f"Go on with {prompt(name)}", "tools": tools, **more}


@dataclass
class ReceivedAnswer:
    """What a client has of one answer when it is over."""

    text: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    finish: str | None = None

    def expect(self, name: str) -> None:
        wanted = RECORDINGS[name]["expect"]
        assert self.text == wanted["text"]
        assert self.calls == [(call["name"], call["arguments"]) for call in wanted["calls"]]
        assert self.finish == ("tool_calls" if wanted["calls"] else "stop")
        assert len(set(self.ids)) == len(self.calls)


def collect_choice(choice: Any) -> ReceivedAnswer:
    calls = choice.message.tool_calls or []
    assert all(call.type == "function" for call in calls)
    assert choice.message.content is not None or calls
    return ReceivedAnswer(
        choice.message.content or "",
        [(call.function.name, call.function.arguments) for call in calls],
        [call.id for call in calls],
        choice.finish_reason,
    )


def collect_stream(chunks: Any, choices: int = 1) -> tuple[list[ReceivedAnswer], Any]:
    """The choices of a stream, each delta checked on the way, and the usage at its end."""
    heard = [ReceivedAnswer() for _ in range(choices)]
    usage = None
    for chunk in chunks:
        assert usage is None, "nothing follows the usage"
        usage = chunk.usage
        for choice in chunk.choices:
            one = heard[choice.index]
            assert one.finish is None, "nothing follows the end of a choice"
            one.finish = choice.finish_reason
            one.text += choice.delta.content or ""
            for call in choice.delta.tool_calls or ():
                add_delta(one, call)
    return heard, usage


def add_delta(heard: ReceivedAnswer, call: Any) -> None:
    if call.index == len(heard.calls):
        assert call.id and call.type == "function" and call.function.name
        heard.ids.append(call.id)
        heard.calls.append((call.function.name, call.function.arguments or ""))
        return
    assert call.index == len(heard.calls) - 1, "arguments belong to the call that is open"
    assert call.id is None and call.function.name is None, "a call is named once"
    assert call.function.arguments, "an empty delta says nothing"
    name, arguments = heard.calls[-1]
    heard.calls[-1] = (name, arguments + call.function.arguments)


def check_counts(name: str, taken: int, made: int) -> None:
    message = {"role": "user", "content": f"Go on with {prompt(name)}"}
    assert taken == len(render_plain([message], RECORDINGS[name]["tools"]).encode())
    assert made == len(RECORDINGS[name]["output"].encode())
