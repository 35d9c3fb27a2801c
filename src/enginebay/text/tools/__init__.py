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

from enginebay.text.tools.call_or_answer import CallOrAnswer
from enginebay.text.tools.checks import ToolPlan, check_tools
from enginebay.text.tools.events import CallArguments, CallStart, Text, ToolEvent, ToolParser
from enginebay.text.tools.formats import FORMATS, ToolFormat, detect_format
from enginebay.text.tools.guided import call_or_answer_schema, calls_schema, guided_parser

__all__ = [
    "FORMATS",
    "CallArguments",
    "CallOrAnswer",
    "CallStart",
    "Text",
    "ToolEvent",
    "ToolFormat",
    "ToolParser",
    "ToolPlan",
    "call_or_answer_schema",
    "calls_schema",
    "check_tools",
    "detect_format",
    "guided_parser",
]
