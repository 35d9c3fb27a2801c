"""The OpenAI Python SDK against the server, on the fake engine and on every real one."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
import time
from typing import Any

import httpx2 as httpx
import openai
import pytest
from openai import APIError, BadRequestError, NotFoundError
from pydantic import BaseModel, Field

from tests.integration.server.conftest import ServedEngine

HELLO: list[Any] = [{"role": "user", "content": "Say hello."}]


class Person(BaseModel):
    name: str = Field(max_length=16)  # a small model would go on and on
    age: int = Field(ge=0, le=150)


WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


def test_chat(served: ServedEngine) -> None:
    answer = served.server.openai().chat.completions.create(
        model="text", messages=HELLO, max_tokens=12, temperature=0, extra_body={"ignore_eos": True}
    )
    [choice] = answer.choices
    assert choice.message.role == "assistant" and choice.message.content
    assert choice.finish_reason == "length"
    assert answer.usage is not None and answer.usage.completion_tokens == 12
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 12
    tokens = httpx.post(f"{served.server.url}/tokenize", json={"model": "text", "messages": HELLO}, timeout=60).json()
    assert answer.usage.prompt_tokens == tokens["count"]


def test_stream_is_the_whole_answer_in_pieces(served: ServedEngine) -> None:
    client = served.server.openai()
    asked: dict[str, Any] = {"model": "text", "messages": HELLO, "max_tokens": 16, "temperature": 0}
    whole = client.chat.completions.create(**asked, extra_body={"ignore_eos": True})
    assert whole.usage is not None
    chunks = list(
        client.chat.completions.create(
            **asked, stream=True, stream_options={"include_usage": True}, extra_body={"ignore_eos": True}
        )
    )
    pieces = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]
    if served.engine != "llamacpp":  # its arithmetic depends on how much of a prompt it still had
        assert "".join(piece or "" for piece in pieces) == whole.choices[0].message.content
    assert pieces
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "length"
    usage = chunks[-1].usage
    assert usage is not None and usage.completion_tokens == 16 and usage.prompt_tokens == whole.usage.prompt_tokens
    assert len({chunk.id for chunk in chunks}) == 1


def test_every_token_is_an_event(served: ServedEngine) -> None:
    body = {"model": "text", "messages": HELLO, "max_tokens": 20, "temperature": 0, "ignore_eos": True, "stream": True}
    answer = httpx.post(f"{served.server.url}/v1/chat/completions", json=body, timeout=120)
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    contents = [one for one in events if one["choices"] and "content" in one["choices"][0]["delta"]]
    assert len(contents) == 1 + 20  # the role's, then one for each token
    assert answer.text.endswith("data: [DONE]\n\n")


def test_several_choices_and_seed(served: ServedEngine) -> None:
    client = served.server.openai()
    answer = client.chat.completions.create(
        model="text", messages=HELLO, n=3, max_tokens=8, temperature=1.0, seed=7, extra_body={"ignore_eos": True}
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in answer.choices}) > 1
    assert answer.usage is not None and answer.usage.completion_tokens == 24


def test_several_choices_streamed(served: ServedEngine) -> None:
    texts = ["", ""]
    finishes: dict[int, str] = {}
    for chunk in served.server.openai().chat.completions.create(
        model="text", messages=HELLO, n=2, max_tokens=6, stream=True, extra_body={"ignore_eos": True}
    ):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            if choice.finish_reason:
                finishes[choice.index] = choice.finish_reason
    assert all(texts) and finishes == {0: "length", 1: "length"}


def test_stop(served: ServedEngine) -> None:
    client = served.server.openai()
    free = client.completions.create(model="text", prompt=served.certain, max_tokens=16, temperature=0)
    word = free.choices[0].text[3:6]
    cut = client.completions.create(model="text", prompt=served.certain, max_tokens=16, temperature=0, stop=[word])
    assert cut.choices[0].finish_reason == "stop"
    assert free.choices[0].text.startswith(cut.choices[0].text) and word not in cut.choices[0].text


def test_logprobs(served: ServedEngine) -> None:
    answer = served.server.openai().chat.completions.create(
        model="text", messages=HELLO, max_tokens=5, temperature=0, logprobs=True, top_logprobs=3,
        extra_body={"ignore_eos": True},
    )  # fmt: skip
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None and len(logprobs.content) == 5
    joined = b"".join(bytes(one.bytes or ()) for one in logprobs.content)
    assert joined.decode(errors="replace").startswith((answer.choices[0].message.content or "")[:3])
    for one in logprobs.content:
        assert len(one.top_logprobs) == 3 and one.logprob <= 0
        assert one.top_logprobs[0].token == one.token  # greedy: the likeliest is the chosen one
        assert one.top_logprobs[0].logprob >= one.top_logprobs[1].logprob


def test_logprobs_of_a_stream(served: ServedEngine) -> None:
    chunks = served.server.openai().chat.completions.create(
        model="text", messages=HELLO, max_tokens=5, temperature=0, logprobs=True, top_logprobs=1, stream=True,
        extra_body={"ignore_eos": True},
    )  # fmt: skip
    found = [
        entry
        for chunk in chunks
        for choice in chunk.choices
        if choice.logprobs
        for entry in choice.logprobs.content or ()
    ]
    assert len(found) == 5


def test_completions(served: ServedEngine) -> None:
    client = served.server.openai()
    answer = client.completions.create(
        model="text", prompt=["one two", "three four"], max_tokens=4, temperature=0, extra_body={"ignore_eos": True}
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.usage is not None and answer.usage.completion_tokens == 8
    default = client.completions.create(model="text", prompt=served.long, extra_body={"ignore_eos": True})
    assert default.usage is not None and default.usage.completion_tokens == 16  # the OpenAI API's default
    echoed = client.completions.create(model="text", prompt="one two", max_tokens=2, echo=True)
    assert echoed.choices[0].text.startswith("one two")
    scored = client.completions.create(
        model="text", prompt="one two", max_tokens=3, logprobs=2, extra_body={"ignore_eos": True}
    )
    logprobs = scored.choices[0].logprobs
    assert logprobs is not None and logprobs.tokens is not None and len(logprobs.tokens) == 3
    assert logprobs.text_offset is not None and logprobs.text_offset[0] == 0


def test_completions_by_token_ids(served: ServedEngine) -> None:
    url = served.server.url
    ids = httpx.post(f"{url}/tokenize", json={"model": "text", "prompt": served.certain}, timeout=60).json()["tokens"]
    client = served.server.openai()
    by_text = client.completions.create(model="text", prompt=served.certain, max_tokens=4, temperature=0)
    by_ids = client.completions.create(model="text", prompt=ids, max_tokens=4, temperature=0)
    assert by_ids.choices[0].text == by_text.choices[0].text
    back = httpx.post(f"{url}/detokenize", json={"model": "text", "tokens": ids}, timeout=60).json()["prompt"]
    assert served.certain in back


def test_logit_bias(served: ServedEngine) -> None:
    client = served.server.openai()
    token = httpx.post(
        f"{served.server.url}/tokenize",
        json={"model": "text", "prompt": "z", "add_special_tokens": False},
        timeout=60,
    ).json()["tokens"][0]
    answer = client.chat.completions.create(
        model="text", messages=HELLO, max_tokens=4, temperature=0, logit_bias={str(token): 100}
    )
    assert answer.choices[0].message.content == "zzzz"


def test_parse_with_a_schema(served: ServedEngine) -> None:
    answer = served.server.openai().chat.completions.parse(
        model="text",
        messages=[{"role": "user", "content": "Describe Ann, who is 30."}],
        response_format=Person,
        max_tokens=150,
        temperature=0,
    )
    person = answer.choices[0].message.parsed
    assert isinstance(person, Person) and isinstance(person.age, int)


def test_a_tool_that_must_be_called(served: ServedEngine) -> None:
    answer = served.server.openai().chat.completions.create(
        model="text", messages=HELLO, tools=[WEATHER], tool_choice="required", parallel_tool_calls=False, max_tokens=150
    )
    [call] = answer.choices[0].message.tool_calls or []
    assert call.type == "function" and call.function.name == "get_weather"
    assert json.loads(call.function.arguments)["city"] in ("Paris", "Rome")
    assert answer.choices[0].finish_reason == "tool_calls"


def test_a_named_tool_streamed(served: ServedEngine) -> None:
    name, arguments, finish = "", "", None
    for chunk in served.server.openai().chat.completions.create(
        model="text", messages=HELLO, tools=[WEATHER], stream=True, max_tokens=150,
        tool_choice={"type": "function", "function": {"name": "get_weather"}},
    ):  # fmt: skip
        for choice in chunk.choices:
            for call in choice.delta.tool_calls or []:
                assert call.function is not None
                name += call.function.name or ""
                arguments += call.function.arguments or ""
            finish = choice.finish_reason or finish
    assert name == "get_weather" and json.loads(arguments)["city"] in ("Paris", "Rome")
    assert finish == "tool_calls"


def test_embeddings(served: ServedEngine) -> None:
    client = served.server.openai()
    texts = ["a small cat", "a little kitten", "the stock market"]
    found = client.embeddings.create(model="vectors", input=texts, encoding_format="float")
    assert [one.index for one in found.data] == [0, 1, 2] and found.usage.prompt_tokens > 3
    packed = client.embeddings.with_raw_response.create(model="vectors", input=texts, encoding_format="base64")
    data = json.loads(packed.text)["data"]
    raw = base64.b64decode(data[0]["embedding"])
    values = struct.unpack(f"<{len(raw) // 4}f", raw)
    assert values == pytest.approx(found.data[0].embedding, rel=1e-3, abs=1e-4)
    short = client.embeddings.create(model="vectors", input="a small cat", dimensions=8, encoding_format="float")
    assert len(short.data[0].embedding) == 8
    assert sum(value * value for value in short.data[0].embedding) == pytest.approx(1.0, rel=1e-3)


def test_models(served: ServedEngine) -> None:
    client = served.server.openai()
    listed = {model.id for model in client.models.list()}
    assert listed == {"text", "tiny", "vectors"}
    found: Any = client.models.retrieve("text").model_dump()["enginebay"]
    assert found["engine"] == served.engine and found["version"]
    assert found["capabilities"]["temperature"]["support"] == "honours"
    settings = found["settings"]
    assert any(pair["asked"] is not None for pair in settings.values())
    with pytest.raises(NotFoundError):
        client.models.retrieve("nothing")


def test_an_adapter_is_a_model(served: ServedEngine) -> None:
    client = served.server.openai()
    asked: Any = {"prompt": served.long, "max_tokens": 12, "temperature": 0}
    plain = client.completions.create(model="text", **asked)
    adapted = client.completions.create(model="tiny", **asked)
    assert adapted.model == "tiny" and adapted.choices[0].text != plain.choices[0].text


def test_headers_say_who_answered_and_what_was_translated(served: ServedEngine) -> None:
    raw = served.server.openai().chat.completions.with_raw_response.create(
        model="text", messages=HELLO, max_tokens=2, extra_headers={"x-request-id": "mine-1"},
        extra_body={"best_of": 2},
    )  # fmt: skip
    assert raw.headers["x-enginebay-engine"].startswith(served.engine)
    assert "best_of" in raw.headers["x-enginebay-translated"]
    assert raw.headers["x-request-id"] == "mine-1"


def test_a_prompt_too_long_is_an_error_with_both_numbers(served: ServedEngine) -> None:
    client = served.server.openai()
    context = client.models.retrieve("text").model_dump()["enginebay"]["context_length"]
    with pytest.raises(BadRequestError) as caught:
        client.completions.create(model="text", prompt=" word" * 5000, max_tokens=4)
    assert str(context) in str(caught.value) and caught.value.code == "context_length_exceeded"
    assert caught.value.param == "prompt"
    cut = client.completions.with_raw_response.create(
        model="text", prompt=" word" * 5000, max_tokens=4, extra_body={"truncate_prompt_tokens": 50}
    )
    assert "dropped" in cut.headers["x-enginebay-truncated"]
    assert cut.parse().usage.prompt_tokens == 50  # type: ignore[union-attr]


def test_what_the_engine_cannot_do_is_named(served: ServedEngine) -> None:
    client = served.server.openai()
    capabilities = client.models.retrieve("text").model_dump()["enginebay"]["capabilities"]
    values: dict[str, Any] = {
        "num_beams": 2,
        "length_penalty": 2.0,
        "guided_regex": "[a-z]+",
        "no_repeat_ngram_size": 2,
    }
    refused = [name for name in values if capabilities[name]["support"] == "refuses"]
    for name in refused:
        with pytest.raises(BadRequestError) as caught:
            client.chat.completions.create(model="text", messages=HELLO, max_tokens=4, extra_body={name: values[name]})
        assert caught.value.param == name


def test_an_answer_by_a_schema_or_a_call_instead(served: ServedEngine) -> None:
    schema = {"type": "object", "properties": {"told": {"enum": ["yes", "no"]}}, "required": ["told"]}
    asked: Any = {"type": "json_schema", "json_schema": {"name": "told", "schema": schema}}
    [choice] = (
        served.server.openai()
        .chat.completions.create(
            model="text", messages=HELLO, tools=[WEATHER], response_format=asked, max_tokens=300, temperature=0
        )
        .choices
    )
    if choice.message.tool_calls:
        [call] = choice.message.tool_calls
        assert choice.finish_reason == "tool_calls" and call.type == "function"
        assert call.function.name == "get_weather" and json.loads(call.function.arguments)["city"] in ("Paris", "Rome")
    else:
        assert json.loads(choice.message.content or "")["told"] in ("yes", "no")


def test_guided_output(served: ServedEngine) -> None:
    client = served.server.openai()
    answer = client.chat.completions.create(
        model="text", messages=HELLO, max_tokens=40, extra_body={"guided_choice": ["zebra", "quagga"]}
    )
    assert answer.choices[0].message.content in ("zebra", "quagga")
    anything = client.chat.completions.create(
        model="text", messages=HELLO, max_tokens=200, response_format={"type": "json_object"}, temperature=0
    )
    if anything.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(anything.choices[0].message.content or ""), dict)


def test_responses(served: ServedEngine) -> None:
    client = served.server.openai()
    whole = client.responses.create(
        model="text", input="Say hello.", instructions="Be brief.", max_output_tokens=16, temperature=0
    )
    assert whole.output_text and whole.usage is not None and whole.usage.output_tokens <= 16
    text = ""
    kinds = []
    with client.responses.stream(
        model="text", input="Say hello.", instructions="Be brief.", max_output_tokens=16, temperature=0
    ) as events:
        for event in events:
            kinds.append(event.type)
            if event.type == "response.output_text.delta":
                text += event.delta
            last = event
    final = last.response  # type: ignore[union-attr]
    assert text and text == final.output_text
    assert final.usage is not None and final.usage.output_tokens <= 16
    assert kinds[0] == "response.created" and kinds[-1] in ("response.completed", "response.incomplete")
    parsed = client.responses.parse(
        model="text", input="Describe Ann, who is 30.", text_format=Person, max_output_tokens=150, temperature=0
    )
    assert isinstance(parsed.output_parsed, Person)


async def test_many_at_once(served: ServedEngine) -> None:
    async with served.server.async_openai() as client:

        async def one(number: int) -> str:
            answer = await client.chat.completions.create(
                model="text", messages=[{"role": "user", "content": f"Number {number}."}], max_tokens=8,
                extra_body={"ignore_eos": True},
            )  # fmt: skip
            assert answer.usage is not None and answer.usage.completion_tokens == 8
            return answer.choices[0].message.content or ""

        assert all(await asyncio.gather(*(one(number) for number in range(16))))


async def test_leaving_a_stream_frees_the_engine(served: ServedEngine) -> None:
    async with served.server.async_openai() as client:
        stream = await client.chat.completions.create(
            model="text", messages=HELLO, max_tokens=400, stream=True, extra_body={"ignore_eos": True}
        )
        async for chunk in stream:
            if chunk.choices and chunk.choices[0].delta.content:
                break
        await stream.close()
        await _until_idle(served)


async def _until_idle(served: ServedEngine) -> None:
    deadline = time.monotonic() + 30
    async with httpx.AsyncClient(timeout=60) as client:
        while time.monotonic() < deadline:
            text = (await client.get(f"{served.server.url}/metrics")).text
            running = [line for line in text.splitlines() if line.startswith("enginebay_engine_running{")]
            if running and all(line.endswith(" 0") for line in running):
                return
            await asyncio.sleep(0.1)
    raise AssertionError(f"still running: {running}")


def test_an_error_is_an_exception_of_the_sdk(served: ServedEngine) -> None:
    client = served.server.openai()
    with pytest.raises(NotFoundError) as missing:
        client.chat.completions.create(model="nothing", messages=HELLO)
    assert missing.value.code == "model_not_found" and missing.value.param == "model"
    with pytest.raises(openai.BadRequestError) as wrong:
        client.chat.completions.create(model="text", messages=HELLO, temperature=3.0)
    assert wrong.value.param == "temperature"
    assert issubclass(BadRequestError, APIError)
