"""Tool calls: what a request may ask for, how models write calls, and parsers that read them while they stream.

    plan = check_tools(request.tools, request.tool_choice)          # raises InvalidRequest
    parser = FORMATS[detect_format(template)].parser(tools)         # mode "auto"
    parser = guided_parser(tools, plan.name)                        # "required" and "named", guided by calls_schema(…)
    parser = CallOrAnswer(tools)                                    # "auto", guided by call_or_answer_schema(…)
    for piece in stream:
        for event in parser.feed(piece): ...                        # Text | CallStart | CallArguments
    parser.end()

What a parser gives out, joined, does not depend on how the text was cut. Nothing is lost: what looked like a call and is
none comes out as text, exactly. Only these disappear: the markers and JSON around calls, white space directly before a
call, white space directly after it (kept if there is text before the call and after it, so that the two stay apart), and
keys of a call's object other than its name and arguments. The joined arguments of a call are valid JSON
if the model wrote valid JSON; a call that is cut off or breaks after its name keeps what it had, so its arguments do not
parse. A call without arguments has {}.
"""

from enginebay.text.tool_calls.format_registry import TOOL_CALL_FORMATS, ToolCallFormat, detect_format
from enginebay.text.tool_calls.guided_calls import (
    CallOrAnswerParser,
    build_call_or_answer_schema,
    build_calls_schema,
    create_guided_parser,
)
from enginebay.text.tool_calls.tool_call_events import (
    AnswerText,
    ToolCallArguments,
    ToolCallEvent,
    ToolCallParser,
    ToolCallStart,
)
from enginebay.text.tool_calls.tool_choice import ToolChoice, parse_tool_choice

__all__ = [
    "TOOL_CALL_FORMATS",
    "AnswerText",
    "CallOrAnswerParser",
    "ToolCallArguments",
    "ToolCallEvent",
    "ToolCallFormat",
    "ToolCallParser",
    "ToolCallStart",
    "ToolChoice",
    "build_call_or_answer_schema",
    "build_calls_schema",
    "create_guided_parser",
    "detect_format",
    "parse_tool_choice",
]
