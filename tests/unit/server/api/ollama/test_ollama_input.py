"""Requests of the Ollama API become chats."""

from __future__ import annotations

from typing import Any

import pytest

from enginebay.errors import InvalidRequest, Unsupported
from enginebay.server.api.fields.field_table import find_rules
from enginebay.server.api.ollama import ollama_input
from enginebay.server.api.ollama.schemas import OllamaChatBody, OllamaGenerateBody, OllamaOptions

USER = {"role": "user", "content": "hi"}


def read(options: Any) -> tuple[OllamaOptions, dict[str, str]]:
    ignored: dict[str, str] = {}
    return ollama_input.read_options(options, ignored), ignored


def chat(**fields: Any) -> Any:
    options, _ = read(fields.pop("options", None))
    return ollama_input.to_chat_body(OllamaChatBody(model="m", **{"messages": [USER], **fields}), options)


def test_options_become_fields() -> None:
    options = {"temperature": 0.5, "top_k": 3, "top_p": 0.9, "min_p": 0.1, "seed": 7, "num_predict": 9, "stop": ["a"],
               "repeat_penalty": 1.1, "presence_penalty": 0.2, "frequency_penalty": 0.3}  # fmt: skip
    body = chat(options=options)
    found = {name: getattr(body, name) for name in options if name not in ("num_predict", "repeat_penalty")}
    assert found == {name: options[name] for name in found}
    assert (body.max_tokens, body.repetition_penalty) == (9, 1.1)


@pytest.mark.parametrize("unlimited", [-1, -2, 0, None])
def test_no_limit_on_the_output(unlimited: int | None) -> None:
    assert chat(options={"num_predict": unlimited}).max_tokens is None


def test_a_seed_of_minus_one_is_random() -> None:
    assert chat(options={"seed": -1}).seed is None
    assert chat(options={"seed": 0}).seed == 0


def test_other_options_are_ignored_by_name() -> None:
    options, ignored = read({"mirostat": 2, "num_gpu": 1, "numa": None, "quux": 1, "temperature": None})
    assert options == OllamaOptions()
    assert set(ignored) == {"options.mirostat", "options.num_gpu", "options.quux"}
    assert ignored["options.quux"] == "unknown" and "configuration" in ignored["options.num_gpu"]


@pytest.mark.parametrize(
    ("options", "param", "words"),
    [
        ({"temprature": 1}, "options.temprature", "temperature"),
        ({"temperature": 9}, "options.temperature", "options.temperature"),
        ({"temperature": "hot"}, "options.temperature", "options.temperature"),
        ({"num_predict": -3}, "options.num_predict", "options.num_predict"),
        ({"num_predict": 10**40}, "options.num_predict", "options.num_predict"),
        ({"stop": [""]}, "options.stop[0]", "options.stop"),
        ({f"qqq{number}zzz": 1 for number in range(17)}, "options", "17 unknown"),
    ],
)
def test_wrong_options_are_named(options: Any, param: str, words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(options)
    assert caught.value.param == param and words in caught.value.message + caught.value.hint


def test_notes_on_options() -> None:
    ignored: dict[str, str] = {}
    translated: dict[str, str] = {}
    ollama_input.note_options(OllamaOptions(num_ctx=8192, repeat_penalty=1.1), 4096, ignored, translated)
    assert set(ignored) == {"options.num_ctx"} and "4096" in ignored["options.num_ctx"]
    assert set(translated) == {"options.repeat_penalty"}


def test_unknown_options_can_be_refused() -> None:
    with pytest.raises(InvalidRequest) as caught:
        ollama_input.read_options({"quux": 1}, {}, refuse_unknown=True)
    assert caught.value.param == "options.quux"
    ollama_input.read_options({"mirostat": 1}, {}, refuse_unknown=True)


def test_notes_have_the_names_of_ollama() -> None:
    notes = {"enable_thinking": "a", "max_tokens": "b", "tools": "c", "top_k": "d"}
    ollama_input.rename_notes(notes)
    assert notes == {"tools": "c", "think": "a", "options.num_predict": "b", "options.top_k": "d"}


def test_formats() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    assert chat(format="").response_format is None
    assert chat(format="json").response_format == {"type": "json_object"}
    assert chat(format=schema).response_format["json_schema"]["schema"] == schema
    with pytest.raises(InvalidRequest, match="xml"):
        chat(format="xml")


@pytest.mark.parametrize(("think", "switches"), [(None, (None, None)), (True, (True, None)), (False, (False, None)), ("low", (None, "low"))])  # fmt: skip
def test_thinking(think: Any, switches: tuple[Any, Any]) -> None:
    body = chat(think=think)
    assert (body.enable_thinking, body.reasoning_effort) == switches


def test_streaming_is_the_default() -> None:
    assert chat().stream is True and chat(stream=True).stream is True and chat(stream=False).stream is False


def test_tools_get_a_type() -> None:
    function = {"name": "f", "parameters": {"type": "object", "properties": {}}}
    assert chat(tools=[{"function": function}]).tools == [{"type": "function", "function": function}]


def translate(*messages: Any) -> list[dict[str, Any]]:
    return ollama_input.translate_messages(messages)


def test_thoughts_and_roles() -> None:
    [message] = translate({"role": "Assistant", "content": "yes", "thinking": "hm"})
    assert message == {"role": "assistant", "content": "yes", "reasoning_content": "hm"}


def call(name: str, call_id: str | None = None, **arguments: Any) -> dict[str, Any]:
    return {**({"id": call_id} if call_id else {}), "function": {"name": name, "arguments": arguments}}


def test_calls_get_ids_and_results_find_them_by_name() -> None:
    asked = {"role": "assistant", "content": "", "tool_calls": [call("a", x=1), call("b"), call("a", x="ü")]}
    results = [{"role": "tool", "content": str(n), "tool_name": name} for n, name in enumerate(("b", "a", "a"))]
    assistant, *tools = translate(USER, asked, *results)[1:]
    ids = [made["id"] for made in assistant["tool_calls"]]
    assert len(set(ids)) == 3 and all(len(made) == 9 and made.isalnum() for made in ids)
    assert [made["function"]["arguments"] for made in assistant["tool_calls"]] == ['{"x": 1}', "{}", '{"x": "ü"}']
    assert [tool["tool_call_id"] for tool in tools] == [ids[1], ids[0], ids[2]]
    assert tools[0]["name"] == "b"


def test_results_without_a_name_answer_in_order() -> None:
    asked = {"role": "assistant", "tool_calls": [call("a", "one"), call("b", "two")]}
    tools = translate(asked, {"role": "tool", "content": "1"}, {"role": "tool", "content": "2"})[1:]
    assert [tool["tool_call_id"] for tool in tools] == ["one", "two"]


def test_a_result_may_name_its_call_or_none() -> None:
    asked = {"role": "assistant", "tool_calls": [call("a", "one"), call("b", "two")]}
    by_id = translate(asked, {"role": "tool", "content": "2", "tool_call_id": "two"}, {"role": "tool", "content": "1"})
    assert [tool["tool_call_id"] for tool in by_id[1:]] == ["two", "one"]
    assert "tool_call_id" not in translate({"role": "tool", "content": "x", "tool_name": "a"})[0]


class CountedText(str):
    """A text that counts comparisons."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        CountedText.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


@pytest.mark.parametrize("field", ["tool_call_id", "tool_name", None])
def test_results_find_their_calls_without_a_search(field: str | None) -> None:
    count = 500
    names = [f"n{number}" for number in range(count)]
    calls = [{"id": CountedText(name), "function": {"name": CountedText(name)}} for name in names]
    results = [
        {"role": "tool", "content": "x", **({field: CountedText(name)} if field else {})}
        for name in (reversed(names) if field else names)
    ]
    CountedText.compared = 0
    tools = translate({"role": "assistant", "tool_calls": calls}, *results)[1:]
    assert CountedText.compared <= 8 * count
    assert [tool["tool_call_id"] for tool in tools] == (names[::-1] if field else names)


def test_each_call_gets_one_result() -> None:
    asked = {"role": "assistant", "tool_calls": [call("a", "one"), call("a", "two"), call("b", "three")]}
    results: list[dict[str, Any]] = [
        {"tool_call_id": "one"}, {"tool_name": "a"}, {"tool_name": "a"}, {"tool_call_id": "one"}, {}, {}
    ]  # fmt: skip
    tools = translate(asked, *({"role": "tool", "content": "x", **result} for result in results))[1:]
    assert [tool.get("tool_call_id") for tool in tools] == ["one", "two", None, "one", "three", None]


def test_images_become_parts() -> None:
    [message] = translate({**USER, "images": ["/9j/4AAQ", "iVBORw0KGgoAAAA"]})
    assert [part["type"] for part in message["content"]] == ["text", "image_url", "image_url"]
    assert message["content"][1]["image_url"]["url"] == "data:image/jpeg;base64,/9j/4AAQ"
    assert message["content"][2]["image_url"]["url"].startswith("data:image/png;")


@pytest.mark.parametrize(
    "wrong",
    [
        {**USER, "images": "abc"},
        {**USER, "images": [1]},
        {"role": "assistant", "tool_calls": [1]},
        {"role": "assistant", "tool_calls": [{}]},
        {"role": "assistant", "tool_calls": [{"function": {"name": 1}}]},
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": [1]}}]},
        {"role": "assistant", "content": "x", "thinking": [1]},
        {"role": "assistant", "tool_calls": [{"id": 1, "function": {"name": "f"}}]},
        {"role": "tool", "content": "x", "tool_name": 1},
        {**USER, "images": False},
    ],
)  # fmt: skip
def test_wrong_messages_are_refused(wrong: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        translate(wrong)
    assert caught.value.param == "messages" and "messages[0]" in caught.value.message


def test_a_prompt_with_a_system_message() -> None:
    body = ollama_input.to_generate_chat(OllamaGenerateBody(model="m", prompt="p", system="s"), OllamaOptions())
    assert body.messages == [{"role": "system", "content": "s"}, {"role": "user", "content": "p"}]


@pytest.mark.parametrize(
    ("fields", "alternative"),
    [
        ({"suffix": "x"}, "raw"),
        ({"template": "{{ .Prompt }}"}, "raw"),
        ({"context": [1, 2]}, "/api/chat"),
    ],
)
def test_refused_fields_name_the_alternative(fields: Any, alternative: str) -> None:
    rules = find_rules("OllamaGenerateBody")
    with pytest.raises(Unsupported) as caught:
        rules.apply(OllamaGenerateBody(model="m", prompt="p", **fields), {}, {})
    assert alternative in caught.value.hint and caught.value.param in fields
    rules.apply(OllamaGenerateBody(model="m", suffix="", template="", context=[]), {}, {})


@pytest.mark.parametrize("fields", [{"system": "s"}, {"images": ["x"]}])
def test_a_raw_prompt_has_no_other_parts(fields: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        ollama_input.check_raw_fields(OllamaGenerateBody(model="m", prompt="p", raw=True, **fields))
    assert caught.value.param in fields
    ollama_input.check_raw_fields(OllamaGenerateBody(model="m", prompt="p", **fields))
