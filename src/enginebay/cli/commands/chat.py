"""`bay chat MODEL`: chat with a model in the terminal."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from enginebay.cli.options import stack_options
from enginebay.cli.options.command_app import create_app
from enginebay.cli.options.sampling_options import with_sampling
from enginebay.cli.output.console import note
from enginebay.cli.termination import Terminated
from enginebay.contract import Delta, FinishReason
from enginebay.errors import RequestError, UsageError
from enginebay.stack import Stack

app = create_app()

_HELP = "/reset clears the conversation, /exit or Ctrl-D quits, Ctrl-C stops an answer"


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
    sampling: dict[str, Any],
) -> None:
    """Chat with a model. The conversation is kept until /reset."""
    if sampling.get("n", 1) > 1:
        raise UsageError("chat shows one answer at a time", "remove --n; --best-of picks the best of several")
    progress = stack_options.StatusLine()
    options = stack_options.build_stack_options(config, set_, offline, strict, engine)
    stack = Stack(model, say=progress.update, **options, **sampling)
    try:
        try:
            stack.open()
        finally:
            progress.clear()
        stack_options.show_warnings(stack.warnings)
        stack_options.warn_unused_keys(set_, stack.facts.kind)
        if sys.stdin.isatty():
            note(f"{stack.facts.model} on {stack.facts.kind} {stack.facts.version}. {_HELP}")
        converse(stack, system, {"lora": lora} if lora else {})
    finally:
        stack.close()


def converse(stack: Stack, system: str | None, options: dict[str, Any]) -> None:
    """Read lines and answer them until the input ends."""
    opening = [{"role": "system", "content": system}] if system else []
    history = list(opening)
    while True:
        try:
            line = input("> " if sys.stdin.isatty() else "").strip()
        except EOFError:
            return
        if line in ("/exit", "/quit"):
            return
        if line == "/reset":
            history = list(opening)
            continue
        if not line:
            continue
        if line.startswith("/"):
            note(_HELP)
            continue
        history.append({"role": "user", "content": line})
        answer = _stream_answer(stack, history, options)
        if answer:
            history.append({"role": "assistant", "content": answer})
        else:
            history.pop()


def _stream_answer(stack: Stack, history: list[dict[str, str]], options: dict[str, Any]) -> str:
    pieces: list[str] = []
    reason: FinishReason | None = None
    try:
        for event in stack.events(history, **options):
            if not isinstance(event, Delta):
                continue
            reason, text = event.finish_reason or reason, event.text
            if text:
                pieces.append(text)
                sys.stdout.write(text)
                sys.stdout.flush()
    except RequestError as error:
        note(f"bay: {error.message}" + (f"\n     {error.hint}" if error.hint else ""))
    except Terminated:
        raise
    except KeyboardInterrupt:
        note(" (stopped)")
    print(flush=True)
    if reason is FinishReason.LENGTH:
        note(stack_options.TRUNCATED_NOTE)
    return "".join(pieces)
