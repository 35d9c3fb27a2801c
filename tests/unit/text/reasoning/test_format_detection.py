"""Which format a template has, and whether a prompt opens or closes a thought."""

from __future__ import annotations

import pytest

from enginebay.config.sections.config_keys import REASONING_FORMATS as CONFIGURABLE
from enginebay.text.reasoning import REASONING_FORMATS, detect_reasoning_format

THINK, HARMONY = REASONING_FORMATS["think"], REASONING_FORMATS["harmony"]


@pytest.mark.parametrize(
    ("template", "name"),
    [
        (None, "none"),
        ("{{ messages[0].content }}", "none"),
        ("{% set content = message.content.split('</think>')[-1] %}", "think"),
        ("{{ '<|im_start|>assistant\\n<think>\\n' }}", "think"),
        ("Your thoughts go here: [THINK]draft[/THINK]", "mistral"),
        ("{{ '<|start|>assistant<|channel|>analysis<|message|>' + message.thinking }}", "harmony"),
        ("Write your thoughts between <think></think> and your response between <response></response>", "granite"),
        ("Write your thoughts after 'Here is my thought process:'", "granite"),
        ("{{ '<|START_THINKING|>' }}", "cohere"),
        ("{{ '<|channel>thought\\n<channel|>' }}", "gemma"),
        ('{%- set think_begin_token = "<seed:think>" %}', "seed"),
    ],
)
def test_the_template_shows_the_format(template: str | None, name: str) -> None:
    assert detect_reasoning_format(template) == name


def test_every_format_can_be_configured() -> None:
    assert set(CONFIGURABLE) == {"auto", "none", *REASONING_FORMATS}


@pytest.mark.parametrize(
    ("end", "opened", "closed"),
    [
        ("<|im_start|>assistant\n", False, False),
        ("<|im_start|>assistant\n<think>\n", True, False),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", False, True),
        ("<｜Assistant｜></think>", False, True),
    ],
)
def test_tags_at_the_end_of_a_prompt(end: str, opened: bool, closed: bool) -> None:
    assert (THINK.is_opened_by(end), THINK.is_closed_by(end)) == (opened, closed)


@pytest.mark.parametrize(
    ("end", "opened", "closed"),
    [
        ("<|end|><|start|>assistant", False, False),
        ("<|end|><|start|>assistant<|channel|>analysis<|message|>", True, False),
        ("<|end|><|start|>assistant<|channel|>final<|message|>", False, True),
    ],
)
def test_channels_at_the_end_of_a_prompt(end: str, opened: bool, closed: bool) -> None:
    assert (HARMONY.is_opened_by(end), HARMONY.is_closed_by(end)) == (opened, closed)


@pytest.mark.parametrize("name", REASONING_FORMATS)
def test_what_the_server_writes_for_the_model_ends_a_thought(name: str) -> None:
    """After each of its texts, the rest is the answer."""
    found = REASONING_FORMATS[name]
    for opened, lead in ((True, found.end_thought), (False, found.skip_thought)):
        begin = (found.tags[0].opening if found.tags else "<|channel|>analysis<|message|>") + "hm" if opened else ""
        parser = found.create_parser(None)
        parser.feed(begin)
        parser.feed(lead)
        assert parser.thought_ended
        assert [event.text for event in (*parser.feed("Yes."), *parser.end())] == ["Yes."]  # type: ignore[union-attr]


@pytest.mark.parametrize(("text", "opening"), [("a <think>b", "<think>"), ("<think>a</think>b", ""), ("a", "")])
def test_a_message_to_continue_may_be_within_a_thought(text: str, opening: str) -> None:
    assert THINK.find_unclosed(text) == opening
