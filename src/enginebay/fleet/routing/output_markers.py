"""What splits a model's output: its reasoning format, and the special tokens that engines leave out of the text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from enginebay.contract import Delta
from enginebay.fleet.routing.model_client import ModelClient
from enginebay.fleet.routing.prompt_encoder import Messages, PromptEncoder
from enginebay.text.output_events import OutputEvent
from enginebay.text.reasoning import (
    NO_REASONING,
    REASONING_FORMATS,
    ReasoningFormat,
    ReasoningParser,
    detect_reasoning_format,
)


def select_reasoning_format(client: ModelClient) -> ReasoningFormat | None:
    """Return the configured format, or the one detected from the model's chat template. None: no thoughts."""
    name = client.handle.reasoning_format
    if name == "auto" and client.spec.renders:
        name = "think"  # the format in which such engines write thoughts as text
    elif name == "auto":
        name = detect_reasoning_format(client.prompt_encoder.chat_template)
    return None if name == NO_REASONING else REASONING_FORMATS[name]


def find_marker_ids(encoder: PromptEncoder, markers: Iterable[str]) -> dict[int, str]:
    """Return the markers that are special tokens, by id."""
    tokenizer = encoder.tokenizer
    if tokenizer is None:
        return {}
    ids = {marker: tokenizer.raw.token_to_id(marker) for marker in markers}
    return {token_id: marker for marker, token_id in ids.items() if token_id in tokenizer.special_ids}


def restore_markers(encoder: PromptEncoder, markers: Mapping[int, str], text: str, token_ids: Sequence[int]) -> str:
    """Return the tokens' text including markers, which engines omit as special tokens."""
    if not markers or not any(token in markers for token in token_ids):
        return text
    if len(token_ids) == 1:
        return markers[token_ids[0]] + text
    # Only the tokens show where in the text the markers belong.
    return b"".join(map(encoder.get_token_bytes, token_ids)).decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class ThoughtSplitter:
    """Splits one output into its thought and its answer."""

    parser: ReasoningParser
    encoder: PromptEncoder
    markers: Mapping[int, str]

    def feed(self, delta: Delta) -> list[OutputEvent]:
        text = restore_markers(self.encoder, self.markers, delta.text, delta.token_ids)
        return self.parser.feed(text, len(delta.token_ids))

    def end(self) -> list[OutputEvent]:
        """Return the events held back, at the end of the output. Call it once."""
        return self.parser.end()


async def plan_splitting(client: ModelClient, messages: Messages) -> Callable[[], ThoughtSplitter] | None:
    """Return what creates a splitter for each answer to a chat. None: the model has no reasoning format."""
    reasoning_format, encoder = select_reasoning_format(client), client.prompt_encoder
    if reasoning_format is None:
        return None
    prompt = "" if client.spec.renders else await encoder.render_async(messages)
    markers = find_marker_ids(encoder, reasoning_format.markers)
    return lambda: ThoughtSplitter(reasoning_format.create_parser(None, prompt), encoder, markers)
