"""`bay run MODEL "prompt"`: one answer, streamed to the terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from enginebay.cli.event_loop import run_in_loop
from enginebay.cli.options import stack_options
from enginebay.cli.options.command_app import create_app
from enginebay.cli.options.sampling_options import with_sampling
from enginebay.cli.output.answer_writer import AnswerWriter, HideThinkingOption
from enginebay.cli.output.console import emit_json, note
from enginebay.contract import Delta, FinishReason
from enginebay.contract.engine_messages import Done
from enginebay.errors import UsageError
from enginebay.stack import AsyncStack

if TYPE_CHECKING:
    from enginebay.fleet.routing.output_markers import ThoughtSplitter

app = create_app()


@app.command()
@with_sampling(logprobs="shown with --json")
def run(
    model: stack_options.ModelArgument,
    prompt: Annotated[str | None, typer.Argument(help="Prompt; `-` or none reads standard input")] = None,
    *,
    engine: stack_options.EngineOption = None,
    system: Annotated[str | None, typer.Option("--system", help="System message")] = None,
    raw: stack_options.RawOption = False,
    lora: stack_options.LoraOption = None,
    stats: Annotated[bool, typer.Option("--stats", help="Print token counts and timings on standard error")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of streaming text")] = False,
    config: stack_options.ConfigOption = None,
    set_: stack_options.SetOption = None,
    offline: stack_options.OfflineOption = None,
    strict: stack_options.StrictOption = False,
    hide_thinking: HideThinkingOption = False,
    sampling: dict[str, Any],
) -> None:
    """Answer one prompt, streamed to the terminal."""
    if raw and system:
        raise UsageError(
            "--raw and --system are mutually exclusive", "put the system message into the prompt, or remove --raw"
        )
    text = read_prompt(prompt)
    messages: Any = [{"role": "system", "content": system}, {"role": "user", "content": text}] if system else text
    progress = stack_options.StatusLine()
    options = stack_options.build_stack_options(config, set_, offline, strict, engine)
    stack = AsyncStack(model, say=progress.update, **options, **sampling)
    try:
        plan = stack.prepare()
    finally:
        progress.clear()
    stack_options.warn_unused_keys(set_, plan.spec.kind)
    stack_options.check_adapter_name(plan, lora)
    printer = _AnswerPrinter(stream=not as_json, hide_thinking=hide_thinking)
    run_in_loop(_run_prompt(stack, messages, raw, lora, stats, printer, progress))


async def _run_prompt(
    stack: AsyncStack,
    prompt: Any,
    raw: bool,
    lora: str | None,
    stats: bool,
    printer: _AnswerPrinter,
    progress: stack_options.StatusLine,
) -> None:
    started = time.monotonic()
    try:
        await stack.open()
    finally:
        progress.clear()
    try:
        stack_options.show_warnings(stack.warnings)
        load_s = time.monotonic() - started
        printer.create_splitter = await stack.plan_splitting(prompt, raw=raw)
        async for event in stack.events(prompt, raw=raw, lora=lora):
            printer.handle_event(event)
        printer.finish()
        if printer.streams and printer.is_truncated:
            note(stack_options.TRUNCATED_NOTE)
        if not printer.streams:
            emit_json({"model": stack.plan.model, "engine": stack.plan.spec.kind, **printer.to_json()})
        if stats and printer.done is not None:
            _print_stats(stack, printer.done, load_s)
    finally:
        await stack.close()


class _AnswerPrinter:
    """Streams the first answer; prints further ones whole after it."""

    def __init__(self, stream: bool, hide_thinking: bool) -> None:
        self.streams = stream
        self._hide_thinking = hide_thinking
        self._events: dict[int, list[Delta]] = {}
        self._writers: dict[int, AnswerWriter] = {}
        self.create_splitter: Callable[[], ThoughtSplitter] | None = None
        self.done: Done | None = None

    def handle_event(self, event: Delta | Done) -> None:
        if isinstance(event, Done):
            self.done = event
            return
        self._events.setdefault(event.choice, []).append(event)
        self._get_writer(event.choice).write(event)

    def _get_writer(self, choice: int) -> AnswerWriter:
        writer = self._writers.get(choice)
        if writer is None:
            splitter = self.create_splitter() if self.create_splitter is not None else None
            silent = choice > 0 or not self.streams
            writer = self._writers[choice] = AnswerWriter(splitter, hide_thinking=self._hide_thinking, silent=silent)
        return writer

    def finish(self) -> None:
        for writer in self._writers.values():
            writer.end()
        if not self.streams:
            return
        if not self.join_text(0).endswith("\n"):
            sys.stdout.write("\n")
        for choice in sorted(self._events)[1:]:
            sys.stdout.write(f"--- {choice + 1} ---\n{self.join_text(choice)}\n")
        sys.stdout.flush()

    @property
    def is_truncated(self) -> bool:
        return any(events[-1].finish_reason is FinishReason.LENGTH for events in self._events.values())

    def join_text(self, choice: int) -> str:
        return self._writers[choice].answer if choice in self._writers else ""

    def to_json(self) -> dict[str, Any]:
        choices = [self._choice_to_json(number) for number in sorted(self._events)]
        usage = self.done.usage if self.done else None
        timing = self.done.timing if self.done else None
        return {
            "choices": choices,
            "usage": {name: getattr(usage, name) for name in usage.__slots__} if usage else None,
            "timing": {name: getattr(timing, name) for name in timing.__slots__} if timing else None,
        }

    def _choice_to_json(self, number: int) -> dict[str, Any]:
        events = self._events[number]
        choice: dict[str, Any] = {"text": self.join_text(number), "finish_reason": events[-1].finish_reason}
        if self._writers[number].thought:
            choice["reasoning"] = self._writers[number].thought
        logprobs = [token for event in events for token in event.logprobs]
        if logprobs:
            choice["logprobs"] = [
                {"token_id": token.token_id, "logprob": token.logprob, "top": token.top} for token in logprobs
            ]
        return choice


def _print_stats(stack: AsyncStack, done: Done, load_s: float) -> None:
    usage, timing = done.usage, done.timing
    decode_s = timing.total_s - timing.ttft_s
    rate = (usage.completion_tokens - 1) / decode_s if decode_s > 0 and usage.completion_tokens > 1 else 0.0
    note(f"engine        {stack.facts.kind} {stack.facts.version}")
    note(f"start         {load_s:.2f} s, of which loading {stack.facts.load_s:.2f} s")
    note(f"prompt        {usage.prompt_tokens} tokens ({usage.cached_tokens} cached)")
    note(f"first token   {timing.ttft_s * 1000:.0f} ms")
    speed = f", {rate:.1f} tokens/s after the first" if rate else ""
    note(f"answer        {usage.completion_tokens} tokens{speed}, {timing.total_s:.2f} s total")


def read_prompt(prompt: str | None) -> str:
    """Return the prompt argument, or standard input for `-` or piped input."""
    if prompt == "-" or (prompt is None and sys.stdin is not None and not sys.stdin.isatty()):
        prompt = sys.stdin.read()
    if not prompt or not prompt.strip():
        raise UsageError("no prompt", 'pass one: bay run MODEL "prompt", or pipe it in')
    return prompt
