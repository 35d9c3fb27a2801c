from __future__ import annotations

import json
from datetime import datetime

import pytest

from enginebay.errors import InvalidRequest, ModelInvalid, Unsupported
from enginebay.text.chat.chat_renderer import ChatRenderer, load_renderer, load_templates
from enginebay.text.tokenization.tokenizer import load_tokenizer
from tests.unit.text.tiny_gguf import build_tiny_llama, build_tiny_vocabulary, write_tiny_llama

HI = [{"role": "user", "content": "hi"}]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def renderer(template: str, **special: str) -> ChatRenderer:
    return ChatRenderer({"default": template}, special)


def test_renders_the_template_of_a_gguf_file(tmp_path):
    path = write_tiny_llama(tmp_path / "tiny.gguf")
    chat, tokenizer = load_renderer(path), load_tokenizer(path)
    assert chat.available
    assert chat.render(HI) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert chat.render(HI, add_generation_prompt=False) == "<|im_start|>user\nhi<|im_end|>\n"
    ids = chat.encode(tokenizer, HI)
    assert ids[0] == 1 and ids.count(1) == 2
    assert tokenizer.decode(ids, skip_special=False) == chat.render(HI)


def test_no_bos_is_added_to_what_the_template_wrote(tmp_path):
    path = write_tiny_llama(tmp_path / "tiny.gguf", **{"tokenizer.ggml.add_bos_token": True})
    chat, tokenizer = load_renderer(path), load_tokenizer(path)
    assert chat.encode(tokenizer, HI)[:2] == [1, *tokenizer.encode("user", add_special=False)][:2]


def test_whitespace_rules_are_those_of_transformers():
    template = "{% for m in messages %}\n    {% if true %}\n{{ m.content }}\n    {% endif %}\n{% endfor %}\nend"
    assert renderer(template).render(HI) == "hi\nend"


def test_names_and_filters_that_templates_may_use():
    template = (
        "{{ bos_token }}|{{ tools | tojson }}|{{ strftime_now('%Y') }}|{{ nothing }}|"
        "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m.content }}{% endfor %}|"
        "{% generation %}said{% endgeneration %}|{{ enable_thinking }}|{{ documents[0].title }}"
    )
    chat = renderer(template, bos_token="<s>")
    text = chat.render([*HI, *HI], tools=[{"a": "<é>"}], documents=[{"title": "T"}], enable_thinking=False)
    assert text == f'<s>|[{{"a": "<é>"}}]|{datetime.now():%Y}||hi|said|False|T'


def test_a_template_that_refuses_is_the_requests_error():
    chat = renderer("{{ raise_exception('roles must\nalternate') }}")
    with pytest.raises(InvalidRequest, match="rejects these messages: roles must alternate") as caught:
        chat.render(HI)
    assert caught.value.param == "messages"
    with pytest.raises(InvalidRequest, match="rejects"):
        renderer("{{ messages[0].content + 1 }}").render(HI)


def test_templates_cannot_reach_out_of_the_sandbox():
    for attack in (
        "{{ ''.__class__.__mro__ }}{{ cycler.__init__.__globals__.os.system('id') }}",
        "{{ messages.append(1) }}",
    ):
        with pytest.raises(InvalidRequest):
            renderer(attack).render(HI)


def test_a_broken_template_is_the_models_error():
    with pytest.raises(ModelInvalid, match=r"invalid: .* \(line 2\)"):
        renderer("\n{% for %}")


def test_a_model_without_a_template_says_so(tmp_path):
    vocabulary = build_tiny_vocabulary()
    del vocabulary["tokenizer.chat_template"]
    (tmp_path / "a.gguf").write_bytes(build_tiny_llama(vocabulary))
    chat = load_renderer(tmp_path / "a.gguf")
    assert not chat.available
    with pytest.raises(Unsupported, match="no chat template") as caught:
        chat.render(HI)
    assert "plain prompt" in caught.value.hint


def test_named_templates_and_tools():
    chat = ChatRenderer({"default": "plain", "tool_use": "tools"}, {})
    assert chat.render(HI) == "plain"
    assert chat.render(HI, tools=[{"name": "f"}]) == "tools"
    with pytest.raises(Unsupported, match="only other"):
        ChatRenderer({"other": "x"}, {}).render(HI)


def test_where_templates_come_from(tmp_path):
    config = tmp_path / "tokenizer_config.json"
    assert load_templates(tmp_path) == {}
    config.write_text(json.dumps({"chat_template": "one"}))
    assert load_templates(tmp_path) == {"default": "one"}
    named = [{"name": "default", "template": "a"}, {"name": "rag", "template": "b"}]
    config.write_text(json.dumps({"chat_template": named}))
    assert load_templates(tmp_path) == {"default": "a", "rag": "b"}
    (tmp_path / "chat_template.jinja").write_text("file")
    assert load_templates(tmp_path) == {"default": "file"}
    config.write_text("[")
    (tmp_path / "chat_template.jinja").unlink()
    with pytest.raises(ModelInvalid, match=r"tokenizer_config.json cannot be read"):
        load_templates(tmp_path)


def test_the_last_message_can_be_continued():
    chat = renderer(CHATML)
    messages = [*HI, {"role": "assistant", "content": "The answer is "}]
    text = chat.render(messages, continue_final_message=True, add_generation_prompt=False)
    assert text.endswith("<|im_start|>assistant\nThe answer is ")
    with pytest.raises(InvalidRequest, match="mutually exclusive"):
        chat.render(messages, continue_final_message=True)
    with pytest.raises(InvalidRequest, match="drops part"):
        renderer("nothing").render(messages, continue_final_message=True, add_generation_prompt=False)


def test_parts_are_joined_for_templates_that_take_text():
    parts = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    assert renderer("{{ messages[0].content }}").render(parts) == "a\nb"
    reads_parts = "{% for m in messages %}{% for p in m['content'] %}[{{ p.text }}]{% endfor %}{% endfor %}"
    assert renderer(reads_parts).render(parts) == "[a][b]"


def test_arguments_of_tool_calls_become_objects():
    template = (
        "{% for c in messages[0].tool_calls %}{{ c.function.arguments.city }}{% endfor %}{{ messages[0].content }}!"
    )
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"city": "Paris"}'}}
    messages = [{"role": "assistant", "content": None, "tool_calls": [call]}]
    assert renderer(template).render(messages) == "Paris!"
    assert call["function"]["arguments"] == '{"city": "Paris"}'


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "empty"),
        ("hi", "must be a list"),
        (["hi"], r"messages\[0\] is not an object"),
        ([{"role": "usr", "content": "x"}], "role: 'usr'"),
        ([{"content": "x"}], "role: None"),
        ([{"role": "user"}], r"messages\[0\] has no content"),
        ([{"role": "user", "content": 3}], "no content"),
        ([{"role": "user", "content": [{"type": "text"}]}], r"content\[0\] has no text"),
    ],
)
def test_wrong_messages_are_named(messages, reason):
    with pytest.raises(InvalidRequest, match=reason) as caught:
        renderer(CHATML).render(messages)
    assert caught.value.param == "messages"


def test_a_typo_in_a_role_gets_a_suggestion_and_images_are_rejected():
    with pytest.raises(InvalidRequest) as caught:
        renderer(CHATML).render([{"role": "usr", "content": "x"}])
    assert "'user'" in caught.value.hint
    with pytest.raises(Unsupported, match="image_url"):
        renderer(CHATML).render([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}])
    with pytest.raises(InvalidRequest, match="tools must be"):
        renderer(CHATML).render(HI, tools={"a": 1})
