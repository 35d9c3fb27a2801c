"""What `bay run` and `bay chat` show of a model that thinks."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from enginebay.cli.output.answer_writer import AnswerWriter
from enginebay.contract import Delta
from enginebay.fleet.routing.output_markers import ThoughtSplitter, plan_splitting
from enginebay.text.reasoning import REASONING_FORMATS

PIECES = ["<th", "ink>\nHm", "m.\n</thi", "nk>\n\n4", "2"]


def make_splitter(prompt_end: str = "") -> ThoughtSplitter:
    encoder: Any = SimpleNamespace(tokenizer=None)
    return ThoughtSplitter(REASONING_FORMATS["think"].create_parser(None, prompt_end), encoder, {})


def write(writer: AnswerWriter, *pieces: str) -> AnswerWriter:
    for piece in pieces:
        writer.write(Delta(text=piece))
    writer.end()
    return writer


def test_the_answer_is_on_stdout_and_the_thought_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    writer = write(AnswerWriter(make_splitter()), *PIECES)
    assert (writer.answer, writer.thought) == ("42", "Hmm.")
    assert capsys.readouterr() == ("42", "Thinking...\nHmm.\n...done thinking.\n\n")


def test_on_a_terminal_the_thought_is_dimmed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    write(AnswerWriter(make_splitter()), *PIECES)
    shown = capsys.readouterr().err
    assert shown.startswith("\x1b[2mThinking...\n") and shown.endswith("\x1b[0m")
    monkeypatch.setenv("NO_COLOR", "1")
    write(AnswerWriter(make_splitter()), *PIECES)
    assert "\x1b" not in capsys.readouterr().err


def test_a_hidden_thought(capsys: pytest.CaptureFixture[str]) -> None:
    writer = write(AnswerWriter(make_splitter(), hide_thinking=True), *PIECES)
    assert capsys.readouterr() == ("42", "") and writer.thought == "Hmm."


def test_a_thought_that_the_prompt_opens_and_nothing_ends(capsys: pytest.CaptureFixture[str]) -> None:
    writer = write(AnswerWriter(make_splitter("<|im_start|>assistant\n<think>\n")), "Hm", "m")
    assert (writer.answer, writer.thought) == ("", "Hmm")
    assert capsys.readouterr().err.endswith("...done thinking.\n\n")


def test_a_model_without_thoughts(capsys: pytest.CaptureFixture[str]) -> None:
    write(AnswerWriter(None), "<think>", " is a tag")
    assert capsys.readouterr() == ("<think> is a tag", "")


def test_a_silent_writer(capsys: pytest.CaptureFixture[str]) -> None:
    writer = write(AnswerWriter(make_splitter(), silent=True), *PIECES)
    assert capsys.readouterr() == ("", "") and writer.answer == "42"


async def test_markers_that_the_engine_leaves_out_are_restored() -> None:
    """As those of Magistral, which are special tokens."""
    ids = {"[THINK]": 34, "[/THINK]": 35}
    tokenizer = SimpleNamespace(raw=SimpleNamespace(token_to_id=ids.get), special_ids={34, 35})

    async def render(messages: object) -> str:
        return "[INST]hi[/INST]"

    encoder = SimpleNamespace(tokenizer=tokenizer, chat_template="[THINK]", render_async=render)
    client: Any = SimpleNamespace(
        handle=SimpleNamespace(reasoning_format="auto"), spec=SimpleNamespace(renders=False), prompt_encoder=encoder
    )
    create_splitter = await plan_splitting(client, ())
    assert create_splitter is not None
    writer = AnswerWriter(create_splitter(), silent=True)
    for text, token in (("", 34), ("Hmm", 7), ("", 35), ("42", 8)):
        writer.write(Delta(text=text, token_ids=(token,)))
    writer.end()
    assert (writer.answer, writer.thought) == ("42", "Hmm")
