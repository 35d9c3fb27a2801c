"""The slash commands of `bay chat`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from enginebay.cli.interactive.chat_commands import ChatCommands, Conversation, parse_value
from enginebay.errors import UnknownModel


class Chat:
    """Commands on a conversation of one turn, with what they said."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.conversation = Conversation("small", turns=[{"role": "user", "content": "hi"}])
        self.commands = ChatCommands(self.conversation, self.switch, self.said.append)

    def switch(self, name: str) -> str:
        if name == "nope":
            raise UnknownModel("unknown model 'nope'", "list models with: bay models list")
        return name

    def run(self, line: str) -> str:
        assert self.commands.run(line)
        return self.said.pop() if self.said else ""


@pytest.fixture
def chat() -> Chat:
    return Chat()


@pytest.mark.parametrize("line", ["/bye", "/exit", "/quit"])
def test_leaving(chat: Chat, line: str) -> None:
    assert not chat.commands.run(line)


def test_an_unknown_command_is_named(chat: Chat) -> None:
    assert chat.run("/nope what") == "unknown command /nope; /help lists the commands"
    assert chat.run("/hepl") == "unknown command /hepl; did you mean /help?"
    assert len(chat.conversation.turns) == 1


def test_help_names_every_command(chat: Chat) -> None:
    text = chat.run("/help")
    assert all(name in text for name in ("/set", "/model", "/clear", "/save", "/bye", '"""', "Ctrl-C"))
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize("line", ["/clear", "/reset"])
def test_clear(chat: Chat, line: str) -> None:
    chat.run(f"/set system {'be brief'}")
    chat.run(line)
    assert chat.conversation.messages == [{"role": "system", "content": "be brief"}]


def test_set_parameters(chat: Chat) -> None:
    assert chat.run("/set temperature 0.5") == "temperature is 0.5"
    assert chat.run("/set parameter stop END") == "stop is END"
    assert chat.conversation.sampling == {"temperature": 0.5, "stop": "END"}
    assert chat.run("/set") == "temperature is 0.5\nstop is END"
    assert chat.run("/set temperature") == "temperature: default"
    assert chat.conversation.sampling == {"stop": "END"}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("/set temprature 1", "unknown sampling parameter 'temprature'\n     did you mean temperature?"),
        ("/set colour red", "unknown sampling parameter 'colour'"),
        ("/set temperature hot", "temperature must be a number, got 'hot'"),
        ("/set temperature 99", "temperature"),
    ],
)
def test_a_wrong_parameter_changes_nothing(chat: Chat, line: str, said: str) -> None:
    assert said in chat.run(line) and chat.conversation.sampling == {}


def test_the_system_message(chat: Chat) -> None:
    chat.run('/set system "Answer in French."')
    assert chat.conversation.messages[0] == {"role": "system", "content": "Answer in French."}
    assert chat.run("/set system") == "there is no system message" and len(chat.conversation.messages) == 1


def test_another_model_keeps_the_conversation(chat: Chat) -> None:
    chat.run("/model large")
    assert chat.conversation.model == "large" and len(chat.conversation.turns) == 1
    assert chat.run("/model nope").startswith("unknown model 'nope'") and chat.conversation.model == "large"
    assert chat.run("/model") == "the model is large; /model NAME switches"


def test_save(chat: Chat, tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    assert chat.run(f"/save {path}") == f"wrote 1 message to {path}"
    assert json.loads(path.read_text()) == {"model": "small", "messages": chat.conversation.turns}
    assert "File exists" in chat.run(f"/save {path}") and "/save needs a file name" in chat.run("/save")


def test_values() -> None:
    assert [parse_value(text) for text in ("", "1", "0.5", "true", "[1, 2]", "a b")] == [
        None, 1, 0.5, True, [1, 2], "a b",
    ]  # fmt: skip
