"""The format registry, and detection by template."""

from __future__ import annotations

import pytest

from enginebay.text.tool_calls import TOOL_CALL_FORMATS, detect_format

HERMES = r"""{{- "\n</tools>\n\nFor each function call, return a json object with function name and arguments within
<tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call>" }}"""
CODER = r"""{{- '\n\nIf you choose to call a function ONLY reply in the following format:\n\n<tool_call>\n
<function=example_function_name>\n<parameter=example_parameter_1>\nvalue_1\n</parameter>\n</function>\n</tool_call>' }}"""
MISTRAL = (
    r"""{%- elif message.tool_calls is defined %}{{- "[TOOL_CALLS] [" }}{%- for tool_call in message.tool_calls %}"""
)
MISTRAL_ARGS = r"""{{- '[TOOL_CALLS]' + name + '[ARGS]' + arguments }}"""
LLAMA_31 = r"""{{- "<|python_tag|>" + tool_call.name + ".call(" }}"""
LLAMA_32 = r"""{{- 'Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}.' }}"""
GLM = r"""{{- '<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key>\n<arg_value>{arg-value-1}</arg_value>\n</tool_call>' }}"""
NO_TOOLS = (
    r"""{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] }}{% endfor %}"""
)


@pytest.mark.parametrize(
    ("template", "name"),
    [
        (HERMES, "hermes"),
        (CODER, "qwen"),
        (MISTRAL, "mistral"),
        (MISTRAL_ARGS, "mistral"),
        (LLAMA_31, "llama3"),
        (LLAMA_32, "llama3"),
        (GLM, "json"),
        (NO_TOOLS, "json"),
        ("", "json"),
        (None, "json"),
    ],
)
def test_a_template_shows_its_format(template: str | None, name: str) -> None:
    assert detect_format(template) == name


def test_the_table_names_each_format_and_its_markers() -> None:
    assert {name: entry.name for name, entry in TOOL_CALL_FORMATS.items()} == {name: name for name in TOOL_CALL_FORMATS}
    assert {name: entry.markers for name, entry in TOOL_CALL_FORMATS.items()} == {
        "hermes": ("<tool_call>", "</tool_call>"),
        "llama3": ("<|python_tag|>",),
        "mistral": ("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"),
        "qwen": ("<tool_call>", "</tool_call>"),
        "json": (),
    }
