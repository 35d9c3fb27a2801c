"""Tool calls: request validation, call formats of models, and streaming parsers.

    choice = parse_tool_choice(request.tools, request.tool_choice)                 # raises InvalidRequest
    parser = TOOL_CALL_FORMATS[detect_format(template)].create_parser(tools)       # mode "auto"
    parser = create_guided_parser(tools, choice.name)     # "required" and "named", guided by build_calls_schema(…)
    parser = CallOrAnswerParser(tools)                    # "auto", guided by build_call_or_answer_schema(…)
    for piece in stream:
        for event in parser.feed(piece): ...              # AnswerText | ToolCallStart | ToolCallArguments
    parser.end()

The joined events do not depend on how the text was split. Text that looked like a call but is none is emitted
unchanged. Only these are dropped: markers and JSON around calls, whitespace directly before or after a call (kept
between two pieces of text), and keys of a call other than its name and arguments. The arguments of a call are valid
JSON if the model wrote valid JSON. A call that breaks off after its name keeps its partial arguments, which do not
parse. A call without arguments has {}.
"""

from enginebay.text.tool_calls.format_registry import TOOL_CALL_FORMATS, ToolCallFormat, detect_format
from enginebay.text.tool_calls.guided_calls import (
    CallOrAnswerParser,
    build_call_or_answer_schema,
    build_calls_schema,
    create_guided_parser,
)
from enginebay.text.tool_calls.tool_choice import ToolChoice, parse_tool_choice

__all__ = [
    "TOOL_CALL_FORMATS",
    "CallOrAnswerParser",
    "ToolCallFormat",
    "ToolChoice",
    "build_call_or_answer_schema",
    "build_calls_schema",
    "create_guided_parser",
    "detect_format",
    "parse_tool_choice",
]
