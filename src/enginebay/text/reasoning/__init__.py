"""Reasoning: formats in which models write their thoughts, and streaming parsers that split them from the answer.

    reasoning_format = REASONING_FORMATS[detect_reasoning_format(template)]    # "none" has no entry
    parser = reasoning_format.create_parser(tool_parser, prompt_end)           # tool_parser may be None
    for piece in stream:
        for event in parser.feed(piece): ...                                   # ReasoningText, then the tool parser's events
    parser.end()

The joined events do not depend on how the text was split. Tags are dropped, and whitespace next to them. A thought is at the
start of an output; a tag in the answer is text.
"""

from enginebay.text.reasoning.reasoning_formats import (
    NO_REASONING,
    REASONING_FORMATS,
    ReasoningFormat,
    detect_reasoning_format,
)
from enginebay.text.reasoning.reasoning_parser import ReasoningParser

__all__ = ["NO_REASONING", "REASONING_FORMATS", "ReasoningFormat", "ReasoningParser", "detect_reasoning_format"]
