"""`bay chat MODEL`: chat with a model in the terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from enginebay.cli.interactive.chat_commands import ChatCommands, Conversation
from enginebay.cli.interactive.chat_input import ChatInput, use_history
from enginebay.cli.options import stack_options
from enginebay.cli.options.command_app import create_app
from enginebay.cli.options.sampling_options import with_sampling
from enginebay.cli.output.answer_writer import AnswerWriter, HideThinkingOption
from enginebay.cli.output.console import note
from enginebay.cli.termination import Terminated
from enginebay.contract import Delta, FinishReason
from enginebay.contract.engine_messages import Done
from enginebay.errors import EnginebayError, RequestError, UsageError
from enginebay.stack import Stack

app = create_app()


@app.command()
@with_sampling(logprobs="not shown by chat")
def chat(
    model: Annotated[str | None, typer.Argument(help="Model (default: the configured one, else smollm2)")] = None,
    *,
    engine: stack_options.EngineOption = None,
    system: Annotated[str | None, typer.Option("--system", help="System message")] = None,
    lora: stack_options.LoraOption = None,
    config: stack_options.ConfigOption = None,
    set_: stack_options.SetOption = None,
    offline: stack_options.OfflineOption = None,
    strict: stack_options.StrictOption = False,
    history: Annotated[
        bool,
        typer.Option(
            "--history/--no-history", help="Remember what you type, in ENGINEBAY_HOME", envvar="ENGINEBAY_CHAT_HISTORY"
        ),
    ] = True,
    hide_thinking: HideThinkingOption = False,
    sampling: dict[str, Any],
) -> None:
    """Chat with a model. The conversation is kept until /clear; /help lists the commands."""
    if sampling.get("n", 1) > 1:
        raise UsageError("chat shows one answer at a time", "remove --n; --best-of picks the best of several")
    options = stack_options.build_stack_options(config, set_, offline, strict, engine)
    session = _ChatSession(options, sampling, lora)
    try:
        conversation = Conversation(session.open(model), system or "")
        stack_options.warn_unused_keys(set_, session.stack.facts.kind)
        with use_history(history):
            converse(session, conversation, hide_thinking)
    finally:
        session.close()


class _ChatSession:
    """The loaded model, which `/model` replaces."""

    def __init__(self, options: dict[str, Any], sampling: dict[str, Any], lora: str | None) -> None:
        self._options, self._sampling, self._lora = options, sampling, lora
        self._stack: Stack | None = None
        self._is_loaded = False
        self._progress = stack_options.StatusLine()

    @property
    def stack(self) -> Stack:
        assert self._stack is not None
        return self._stack

    def open(self, model: str | None) -> str:
        """Load a model instead of the current one, and return its name."""
        stack = Stack(model, say=self._progress.update, **self._options, **self._sampling)
        try:
            plan = stack.prepare()  # an unknown model, engine or adapter fails here, before anything is unloaded
            stack_options.check_adapter_name(plan, self._lora)
            self._is_loaded = False
            self.close()
            self._stack = stack.open()
            self._is_loaded = True
        finally:
            self._progress.clear()
        stack_options.show_warnings(stack.warnings)
        if sys.stdin.isatty():
            note(f"{stack.facts.model} on {stack.facts.kind} {stack.facts.version}. /help lists the commands")
        return plan.model

    def switch(self, model: str) -> str:
        """Like `open`, but on failure and on Ctrl-C the current model stays. A second Ctrl-C stops its reload."""
        try:
            return self.open(model)
        except Terminated:
            raise
        except KeyboardInterrupt:
            self._reload()
            raise EnginebayError(f"stopped; the model is still {self.stack.facts.model}") from None
        except EnginebayError:
            self._reload()
            raise

    def _reload(self) -> None:
        """Load the current model again if it was unloaded."""
        if not self._is_loaded:
            try:
                self.close()  # Ctrl-C may have cut it short
                self.stack.open()
                self._is_loaded = True
            finally:
                self._progress.clear()

    def close(self) -> None:
        if self._stack is not None:
            self._stack.close()

    def stream(self, conversation: Conversation) -> Iterator[Delta | Done]:
        return self.stack.events(conversation.messages, lora=self._lora, **conversation.sampling)

    def create_writer(self, conversation: Conversation, hide_thinking: bool) -> AnswerWriter:
        create_splitter = self.stack.plan_splitting(conversation.messages, **conversation.sampling)
        return AnswerWriter(create_splitter() if create_splitter else None, hide_thinking=hide_thinking)


def converse(session: _ChatSession, conversation: Conversation, hide_thinking: bool = False) -> None:
    """Answer messages and run commands until the input ends."""
    commands = ChatCommands(conversation, session.switch, note)
    for message in ChatInput():
        if message.startswith("/") and "\n" not in message:
            if not commands.run(message):
                return
            continue
        conversation.turns.append({"role": "user", "content": message})
        answer = _stream_answer(session, conversation, hide_thinking)
        if answer:
            conversation.turns.append({"role": "assistant", "content": answer})
        else:
            conversation.turns.pop()


def _stream_answer(session: _ChatSession, conversation: Conversation, hide_thinking: bool) -> str:
    reason: FinishReason | None = None
    problem, writer = "", AnswerWriter(None)
    try:
        writer = session.create_writer(conversation, hide_thinking)
        for event in session.stream(conversation):
            if isinstance(event, Delta):
                reason = event.finish_reason or reason
                writer.write(event)
    except RequestError as error:
        problem = f"bay: {error.message}" + (f"\n     {error.hint}" if error.hint else "")
    except Terminated:
        raise
    except KeyboardInterrupt:
        problem = " (stopped)"
    writer.end()
    if problem:
        note(problem)
    print(flush=True)
    if reason is FinishReason.LENGTH:
        note(stack_options.TRUNCATED_NOTE)
    return writer.answer
