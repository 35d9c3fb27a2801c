"""LangChain and LiteLLM against the server, on the fake engine."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.server.bay_process import BayProcess, run_server

# LiteLLM needs other versions than ours, so it has an environment of its own.
PYTHON = Path(__file__).parents[3] / ".cache" / "clients" / "bin" / "python"
LITELLM_SCRIPT = """
import os, sys
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # not from the network
import litellm
litellm.suppress_debug_info = True

def ask(text):
    return litellm.completion(
        model="openai/toy", api_base=f"{sys.argv[1]}/v1", api_key="none", messages=[{"role": "user", "content": text}],
        reasoning_effort="low", allowed_openai_params=["reasoning_effort"], max_tokens=10**6, num_retries=0,
    )

print(ask("hi").usage.completion_tokens > 0)
try:
    ask("x " * 5000)
except litellm.ContextWindowExceededError as error:
    print(type(error).__name__, error.status_code)
"""


@pytest.fixture(scope="module")
def server() -> Iterator[BayProcess]:
    toy = {"engine": "fake", "fake": {"context_length": 512}}
    with run_server(config={"models": {"toy": toy}}) as running:
        yield running


def chat(server: BayProcess, **options: Any) -> Any:
    from langchain_openai import ChatOpenAI  # takes a second

    url: Any = f"{server.url}/v1"
    return ChatOpenAI(model="toy", base_url=url, api_key="none", max_retries=0, timeout=60, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("use_responses_api", [False, True])
def test_langchain_with_reasoning_effort(server: BayProcess, use_responses_api: bool) -> None:
    model = chat(
        server, reasoning_effort="low", verbosity="low", service_tier="flex", store=True, max_tokens=8,
        use_responses_api=use_responses_api, include_response_headers=True,
    )  # fmt: skip
    answer = model.invoke("Say hello.")
    assert answer.text
    ignored = answer.response_metadata["headers"]["x-enginebay-ignored"]
    names = ("reasoning.effort", "text.verbosity") if use_responses_api else ("reasoning_effort", "verbosity")
    for name in (*names, "service_tier", *(() if use_responses_api else ("store",))):
        assert name in ignored


def test_langchain_notices_that_a_prompt_does_not_fit(server: BayProcess) -> None:
    from langchain_openai.chat_models.base import OpenAIContextOverflowError

    with pytest.raises(OpenAIContextOverflowError):
        chat(server).invoke("x " * 5000)


@pytest.mark.slow
def test_litellm_raises_context_window_exceeded(server: BayProcess) -> None:
    assert PYTHON.exists(), "LiteLLM is not installed: make clients"
    command = [PYTHON, "-c", LITELLM_SCRIPT, server.url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["True", "ContextWindowExceededError 400"]
