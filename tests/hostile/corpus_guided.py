"""Constraints that took a model away from everybody, were silently dropped, or must go on working: data only.

Each entry is a name and the request fields. `REFUSED`: a 4xx on every engine. `EITHER`: refused, or answered within the
constraint. `ORDINARY`: what people really send, answered on every engine that takes the kind of constraint.
"""

from __future__ import annotations

import json
from typing import Any

from enginebay.contract import Guided

Corpus = list[tuple[str, dict[str, Any]]]


def nest_groups(levels: int) -> str:
    return "root ::= " + "(" * levels + '"a"' + ")" * levels


def list_alternatives(count: int) -> str:
    return "root ::= " + " | ".join(f'"word{number}"' for number in range(count))


def make_optional_properties(count: int) -> dict[str, Any]:
    properties = {f"property{number}": {"type": "string"} for number in range(count)}
    return {"type": "object", "properties": properties, "additionalProperties": False}


def make_required_tree(levels: int, branches: int) -> dict[str, Any]:
    """Each level requires `branches` values of the next."""
    definitions: dict[str, Any] = {f"level{levels}": {"type": "integer"}}
    names = [f"p{number}" for number in range(branches)]
    for level in range(levels):
        properties = {name: {"$ref": f"#/$defs/level{level + 1}"} for name in names}
        definitions[f"level{level}"] = {"type": "object", "properties": properties, "required": names}
    return {"$defs": definitions, "$ref": "#/$defs/level0"}


AMBIGUOUS = 'root ::= s\ns ::= s2 s2 | "a"\ns2 ::= "a" s | "a" | "a" s2 s2\n'

JSON_GRAMMAR = r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws (pair ("," ws pair)*)? "}" ws
pair   ::= string ":" ws value
array  ::= "[" ws (value ("," ws value)*)? "]" ws
string ::= "\"" ([^"\\\x7F\x00-\x1F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4}))* "\"" ws
number ::= "-"? ([0-9] | [1-9] [0-9]{0,15}) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
# no more than one blank, or a newline and an indentation
ws     ::= | " " | "\n" [ \t]{0,20}
"""

ARITHMETIC_GRAMMAR = r"""
root ::= (expression "=" blank term "\n")+
expression ::= term ([-+*/] blank term)*
term ::= (identifier | number | "(" blank expression ")") blank
identifier ::= [a-z] [a-z0-9_]*
number ::= [0-9]+
blank ::= [ \t]*
"""

LIST_GRAMMAR = 'root ::= item+\nitem ::= "- " [^\\r\\n\\x0b\\x0c\\x85\\u2028\\u2029]+ "\\n"\n'

C_GRAMMAR = r"""
root ::= declaration*
declaration ::= type identifier "(" parameter? ")" "{" statement* "}"
type ::= "int" ws | "float" ws | "char" ws
identifier ::= [a-zA-Z_] [a-zA-Z_0-9]*
parameter ::= type identifier
statement ::=
    type identifier ws "=" ws expression ";" |
    identifier ws "=" ws expression ";" |
    identifier ws "(" arguments? ")" ";" |
    "return" ws expression ";" |
    "while" "(" condition ")" "{" statement* "}" |
    "for" "(" initial ";" ws condition ";" ws update ")" "{" statement* "}" |
    "if" "(" condition ")" "{" statement* "}" ("else" "{" statement* "}")? |
    "//" [^\n]* "\n"
initial ::= type identifier ws "=" ws expression | identifier ws "=" ws expression
update ::= identifier ws "=" ws expression
condition ::= expression relation expression
relation ::= "<=" | "<" | "==" | "!=" | ">=" | ">"
expression ::= term (("+" | "-") term)*
term ::= factor (("*" | "/") factor)*
factor ::= identifier | number | "-" factor | identifier "(" arguments? ")" | "(" expression ")"
arguments ::= expression ("," ws expression)*
number ::= [0-9]+
ws ::= [ \t\n]+
"""

CHESS_GRAMMAR = r"""
root ::= "1. " move " " move "\n" ([1-9] [0-9]? ". " move " " move "\n")+
move ::= (pawn | piece | castle) [+#]?
piece ::= [NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8]
pawn ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBKQR])?
castle ::= "O-O" "-O"?
"""

TEN_PROPERTIES = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "name": {"type": "string", "maxLength": 20},
        "email": {"type": "string", "format": "email"},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "active": {"type": "boolean"},
        "role": {"enum": ["admin", "editor", "viewer"]},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 3},
        "address": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        "score": {"type": "number"},
        "note": {"type": ["string", "null"]},
    },
    "required": ["id", "name", "active"],
    "additionalProperties": False,
}

ENDLESS_TREE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"left": {"$ref": "#/$defs/node"}, "right": {"$ref": "#/$defs/node"}},
            "required": ["left", "right"],
        }
    },
    "$ref": "#/$defs/node",
}

REFUSED: Corpus = [
    ("groups 30,000 deep", {"guided_grammar": nest_groups(30_000)}),
    ("groups 1,000 deep", {"guided_grammar": nest_groups(1_000)}),
    ("an ambiguous grammar", {"guided_grammar": AMBIGUOUS}),
    ("left recursion", {"guided_grammar": 'root ::= root "a" | "a"'}),
    ("indirect left recursion", {"guided_grammar": 'root ::= x "a"\nx ::= y "b"\ny ::= root | "c"'}),
    ("left recursion behind an empty rule", {"guided_grammar": 'root ::= e root "a" | "a"\ne ::= "b"?'}),
    ("a nullable repeat without end", {"guided_grammar": 'root ::= ("a"?)*'}),
    ("an undefined rule", {"guided_grammar": "root ::= missing"}),
    ("no root", {"guided_grammar": 'start ::= "a"'}),
    ("an empty grammar", {"guided_grammar": ""}),
    ("a grammar with a syntax error", {"guided_grammar": 'root ::= "a'}),
    ("a repeat of 100,000", {"guided_grammar": 'root ::= "a"{100000}'}),
    ("nested repeats", {"guided_grammar": 'root ::= (("a"{100}){100}){100}'}),
    ("6,000 alternatives", {"guided_grammar": list_alternatives(6_000)}),
    ("a class that matches nothing in a grammar", {"guided_grammar": "root ::= [^\\x00-\\U0010FFFF]"}),
    ("an escaped NUL in a grammar", {"guided_grammar": 'root ::= "\\x00"'}),
    ("a NUL in a grammar", {"guided_grammar": 'root ::= "\0"'}),
    ("a lark grammar", {"guided_grammar": "%llguidance {}\nstart: /(/"}),
    ("a NUL in a regex", {"guided_regex": "a\0b"}),
    ("an escaped NUL in a regex", {"guided_regex": "a\\x00b"}),
    ("a NUL in a choice", {"guided_choice": ["a\0b", "c"]}),
    ("a class that matches nothing", {"guided_regex": "[^\\x00-\\U0010ffff]"}),
    ("a class that matches nothing, by shorthands", {"guided_regex": "[^\\s\\S]"}),
    ("groups 1,000 deep in a regex", {"guided_regex": "(" * 1_000 + "a" + ")" * 1_000}),
    ("choices of 4 MB", {"guided_choice": [f"{number}" + "x" * 2_000 for number in range(1_000)]}),
]

EITHER: Corpus = [
    ("1,000 optional repeats", {"guided_grammar": "root ::= ([a-z]?){1000}"}),
    ("1,000 optional characters", {"guided_regex": "(?:.?){1000}"}),
    ("1,000 optional letters", {"guided_regex": "(?:[a-z]?){1000}"}),
    ("five optional letters 100 times", {"guided_regex": "(?:a?b?c?d?e?){1,100}"}),
    ("many alternatives in a regex", {"guided_regex": "|".join(f"w{number}" for number in range(400))}),
    ("1,024 choices", {"guided_choice": [f"choice number {number}" for number in range(1_024)]}),
    ("choices that share a long prefix", {"guided_choice": ["a" * length for length in range(1, 900, 7)]}),
    ("500 optional properties", {"guided_json": make_optional_properties(500)}),
    ("2,000 optional properties", {"guided_json": make_optional_properties(2_000)}),
    ("a tree of required references", {"guided_json": make_required_tree(8, 8)}),
    ("a deep tree of required references", {"guided_json": make_required_tree(30, 4)}),
    ("an endless tree of required references", {"guided_json": ENDLESS_TREE}),
    ("the text of a control token", {"guided_choice": ["a<|im_end|>b"]}),
    ("a long string", {"guided_json": {"type": "string", "minLength": 15_000, "maxLength": 20_000}}),
    ("a long list", {"guided_json": {"type": "array", "items": {"type": "integer"}, "minItems": 19_000}}),
    ("a pattern of many states", {"guided_json": {"type": "string", "pattern": "^(?:[a-z]{1,50}-){1,100}$"}}),
]

ORDINARY: Corpus = [
    ("a JSON grammar", {"guided_grammar": JSON_GRAMMAR}),
    ("an arithmetic grammar", {"guided_grammar": ARITHMETIC_GRAMMAR}),
    ("a list grammar", {"guided_grammar": LIST_GRAMMAR}),
    ("a C grammar", {"guided_grammar": C_GRAMMAR}),
    ("a chess grammar", {"guided_grammar": CHESS_GRAMMAR}),
    ("a yes or no grammar", {"guided_grammar": 'root ::= "yes" | "no"'}),
    ("a date", {"guided_regex": r"^\d{4}-\d{2}-\d{2}$"}),
    ("a phone number", {"guided_regex": r"\(\d{3}\) \d{3}-\d{4}"}),
    ("an address of a host", {"guided_regex": r"((25[0-5]|(2[0-4]|1\d|[1-9]|)\d)\.?){4}"}),
    ("words", {"guided_regex": r"[A-Z][a-z]+( [a-z]+){1,8}\."}),
    ("yes or no", {"guided_choice": ["yes", "no"]}),
    ("labels with a common prefix", {"guided_choice": ["pos", "positive", "neg", "negative", "neutral"]}),
    ("a schema of ten properties", {"guided_json": TEN_PROPERTIES}),
    ("any object", {"response_format": {"type": "json_object"}}),
]


def to_guided(fields: dict[str, Any]) -> Guided:
    """Return the constraint of a corpus entry."""
    if "guided_json" in fields:
        return Guided(json=json.dumps(fields["guided_json"]))
    if "guided_choice" in fields:
        return Guided(choice=tuple(fields["guided_choice"]))
    if "response_format" in fields:
        return Guided(json="{}")
    return Guided(regex=fields.get("guided_regex"), grammar=fields.get("guided_grammar"))
