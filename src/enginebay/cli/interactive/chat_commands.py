"""The slash commands of `bay chat`, and the conversation they change."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from enginebay.contract import parse_sampling
from enginebay.errors import EnginebayError, UsageError
from enginebay.util.text_format import find_nearest, pluralize

HELP = '''\
/set NAME VALUE    set a sampling parameter, such as temperature; no VALUE resets it
/set system TEXT   set the system message; no TEXT removes it
/set               show what is set
/model NAME        switch to another model and keep the conversation
/clear             forget the conversation (also /reset)
/save FILE         write the conversation as JSON
/bye               quit (also /exit, /quit, Ctrl-D)
"""                begins and ends a message of several lines; \\ at the end of a line continues it
Ctrl-C             stops an answer, clears a line, or exits on an empty line'''


@dataclass(slots=True)
class Conversation:
    """The messages so far, and what applies to the next answer."""

    model: str
    system: str = ""
    sampling: dict[str, Any] = field(default_factory=dict)
    turns: list[dict[str, str]] = field(default_factory=list)

    @property
    def messages(self) -> list[dict[str, str]]:
        return [*([{"role": "system", "content": self.system}] if self.system else []), *self.turns]


@dataclass(frozen=True, slots=True)
class ChatCommands:
    """Runs slash commands. `switch_model` loads another model and returns its name; raises `EnginebayError`."""

    conversation: Conversation
    switch_model: Callable[[str], str]
    say: Callable[[str], None]

    def run(self, line: str) -> bool:
        """Run one command; return False to quit. Reports an unknown one."""
        name, _, rest = line.partition(" ")
        if name in ("/bye", "/exit", "/quit"):
            return False
        action = self._actions.get(name)
        if action is None:
            near = find_nearest(name, [*self._actions, "/bye"])
            hint = f"did you mean {near[0]}?" if near else "/help lists the commands"
            self.say(f"unknown command {name}; {hint}")
            return True
        try:
            action(rest.strip())
        except EnginebayError as error:
            self.say(f"{error.message}" + (f"\n     {error.hint}" if error.hint else ""))
        return True

    @property
    def _actions(self) -> dict[str, Callable[[str], None]]:
        return {
            "/help": lambda _: self.say(HELP), "/?": lambda _: self.say(HELP), "/clear": self._clear,
            "/reset": self._clear, "/set": self._set, "/model": self._switch, "/save": self._save,
        }  # fmt: skip

    def _clear(self, _: str) -> None:
        self.conversation.turns.clear()
        self.say("the conversation is empty")

    def _switch(self, name: str) -> None:
        if not name:
            self.say(f"the model is {self.conversation.model}; /model NAME switches")
            return
        self.conversation.model = self.switch_model(name)

    def _set(self, rest: str) -> None:
        name, _, value = rest.removeprefix("parameter ").strip().partition(" ")  # as Ollama spells it
        if not name:
            self._show_settings()
        elif name == "system":
            self.conversation.system = value.strip().strip('"')
            self.say("the system message is set" if self.conversation.system else "there is no system message")
        else:
            self._set_parameter(name, value.strip())

    def _set_parameter(self, name: str, text: str) -> None:
        value = parse_value(text)
        parse_sampling(
            {name: value}, "/set system TEXT sets the system message; `bay chat --help` lists the parameters"
        )
        if value is None:
            self.conversation.sampling.pop(name, None)
            self.say(f"{name}: default")
            return
        parse_sampling({**self.conversation.sampling, name: value})
        self.conversation.sampling[name] = value
        self.say(f"{name} is {value}")

    def _show_settings(self) -> None:
        lines = [f"{name} is {value}" for name, value in self.conversation.sampling.items()]
        lines += [f"system message: {self.conversation.system}"] if self.conversation.system else []
        self.say("\n".join(lines) or "nothing is set; /set NAME VALUE sets a sampling parameter")

    def _save(self, name: str) -> None:
        if not name:
            raise UsageError("/save needs a file name", "/save chat.json")
        content = {"model": self.conversation.model, "messages": self.conversation.messages}
        try:
            with Path(name).expanduser().open("x", encoding="utf-8") as file:
                json.dump(content, file, indent=2, ensure_ascii=False)
        except OSError as error:
            raise UsageError(f"cannot write {name}: {error.strerror}", "choose another name") from None
        self.say(f"wrote {pluralize(len(content['messages']), 'message')} to {name}")


def parse_value(text: str) -> Any:
    """Parse the value of a parameter: JSON if it is some, else text; empty means unset."""
    try:
        return json.loads(text) if text else None
    except ValueError:
        return text
