"""Start vLLM's output handler with the engine, and report its end. vLLM starts it with the first request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def watch_output_handler(llm: Any, on_end: Callable[[Any], None]) -> None:
    """Start the handler. It only ends when the engine process has died. Call it in the loop's thread."""
    llm._run_output_handler()
    llm.output_handler.add_done_callback(on_end)


def cancel_output_handler(llm: Any) -> None:
    handler = getattr(llm, "output_handler", None)
    if handler is not None:
        handler.cancel()
