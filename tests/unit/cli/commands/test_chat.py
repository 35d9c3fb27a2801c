"""`/model` of `bay chat`: what stays loaded if the switch fails or is interrupted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from enginebay.cli.commands import chat
from enginebay.cli.termination import Terminated
from enginebay.errors import EnginebayError, EngineFailed


class FakeStack:
    """Opens at once, or fails as planned."""

    log: ClassVar[list[str]] = []
    failures: ClassVar[dict[str, list[BaseException]]] = {}  # of open, by model

    def __init__(self, model: str, **_: Any) -> None:
        self.model = model
        self.facts = SimpleNamespace(model=model, kind="fake", version="1")
        self.warnings: list[str] = []

    def prepare(self) -> SimpleNamespace:
        return SimpleNamespace(model=self.model)

    def open(self) -> FakeStack:
        self.log.append(f"open {self.model}")
        if self.failures.get(self.model):
            raise self.failures[self.model].pop()
        return self

    def close(self) -> None:
        self.log.append(f"close {self.model}")


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> chat._ChatSession:
    monkeypatch.setattr(chat, "Stack", FakeStack)
    monkeypatch.setattr(chat.stack_options, "check_adapter_name", lambda *_: None)
    monkeypatch.setattr(FakeStack, "failures", {})
    opened = chat._ChatSession({}, {}, None)
    opened.open("old")
    monkeypatch.setattr(FakeStack, "log", [])
    return opened


def test_a_switch(session: chat._ChatSession) -> None:
    assert session.switch("new") == "new"
    assert FakeStack.log == ["close old", "open new"] and session.stack.facts.model == "new"


@pytest.mark.parametrize("failure", [EngineFailed("it broke"), KeyboardInterrupt()])
def test_the_old_model_is_loaded_again(session: chat._ChatSession, failure: BaseException) -> None:
    FakeStack.failures["new"] = [failure]
    with pytest.raises(EnginebayError, match=r"it broke|stopped; the model is still old"):  # the chat reports it
        session.switch("new")
    assert FakeStack.log[-1] == "open old" and session.stack.facts.model == "old"


@pytest.mark.parametrize("failure", [Terminated(), RuntimeError()])
def test_a_chat_that_ends_loads_nothing(session: chat._ChatSession, failure: BaseException) -> None:
    FakeStack.failures["new"] = [failure]
    with pytest.raises(type(failure)):
        session.switch("new")
    assert FakeStack.log == ["close old", "open new"]


def test_a_second_ctrl_c_leaves(session: chat._ChatSession) -> None:
    FakeStack.failures |= {"new": [KeyboardInterrupt()], "old": [KeyboardInterrupt()]}
    with pytest.raises(KeyboardInterrupt):
        session.switch("new")


def test_ctrl_c_during_the_download_unloads_nothing(
    session: chat._ChatSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prepare(_: FakeStack) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(FakeStack, "prepare", prepare)
    with pytest.raises(EnginebayError, match="stopped; the model is still old"):
        session.switch("new")
    assert FakeStack.log == []
