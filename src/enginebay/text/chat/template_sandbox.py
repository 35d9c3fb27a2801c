"""The Jinja sandbox for chat templates, with the names, filters and whitespace rules of Transformers."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

from jinja2 import Template, nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


class GenerationBlock(Extension):
    """Renders `{% generation %}…{% endgeneration %}`, which marks assistant text for training, as its content."""

    tags = {"generation"}  # noqa: RUF012 - as the base class declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_content"), [], [], body).set_lineno(line)

    def _content(self, caller: Callable[[], str]) -> str:
        return caller()


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Dump JSON without the HTML escapes of Jinja's filter: models were trained on plain JSON."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _strftime_now(layout: str) -> str:
    return datetime.now().strftime(layout)


def create_environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


@lru_cache(maxsize=64)
def compile_template(source: str) -> Template:
    """Compile a template. Raises jinja2's `TemplateSyntaxError`."""
    return create_environment().from_string(source)


@lru_cache(maxsize=64)
def reads_content_parts(source: str) -> bool:
    """Return whether the template loops over content parts instead of expecting a string."""
    return any(_is_content_node(loop.iter) for loop in create_environment().parse(source).find_all(nodes.For))


def _is_content_node(node: nodes.Node) -> bool:
    """Match `content`, `message.content` and `message['content']`, with or without filters."""
    if isinstance(node, nodes.Filter) and node.node is not None:
        return _is_content_node(node.node)
    if isinstance(node, nodes.Name):
        return node.name == "content"
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    return isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const) and node.arg.value == "content"


@dataclass(frozen=True)
class TemplateNames:
    """What a template reads: its variables, fields of its objects, and strings that it compares them to."""

    variables: frozenset[str]
    fields: frozenset[str]
    types: frozenset[str]  # to which it compares a `type`
    compared: frozenset[str]  # strings in any comparison

    @staticmethod
    @lru_cache(maxsize=64)
    def read(source: str) -> TemplateNames:
        tree = create_environment().parse(source)
        fields = {node.attr for node in tree.find_all(nodes.Getattr)} | {
            str(node.arg.value) for node in tree.find_all(nodes.Getitem) if isinstance(node.arg, nodes.Const)
        }
        for call in tree.find_all(nodes.Call):  # message.get('name')
            if isinstance(call.node, nodes.Getattr) and call.node.attr == "get" and call.args:
                fields |= _find_strings(call.args[0])
        compares = list(tree.find_all(nodes.Compare))
        for compare in compares:  # 'name' in message
            if any(operand.op in ("in", "notin") for operand in compare.ops):
                fields |= _find_strings(compare.expr)
        return TemplateNames(
            frozenset(node.name for node in tree.find_all(nodes.Name) if node.ctx == "load"),
            frozenset(fields),
            frozenset().union(*(_find_strings(compare) for compare in compares if _reads_type(compare.expr))),
            frozenset().union(*map(_find_strings, compares)),
        )


def _find_strings(node: nodes.Node) -> frozenset[str]:
    constants = [node] if isinstance(node, nodes.Const) else node.find_all(nodes.Const)
    return frozenset(constant.value for constant in constants if isinstance(constant.value, str))


def _reads_type(node: nodes.Node) -> bool:
    if isinstance(node, nodes.Getattr):
        return node.attr == "type"
    return isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const) and node.arg.value == "type"
