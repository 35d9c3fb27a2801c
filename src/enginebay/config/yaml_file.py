"""Read YAML into entries that know their line. Safe tags only, and nothing that grows without bound."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from enginebay.config.tree import Entry, Origin, Problem, Problems

MAX_BYTES = 1 << 20
MAX_DEPTH = 40
MAX_VALUES = 50_000  # counted after aliases are followed, so that a few lines cannot stand for millions of values

_TAG = "tag:yaml.org,2002:"
_SCALARS = {f"{_TAG}{name}" for name in ("str", "int", "float", "bool", "null")}
_FLOAT = re.compile(r"^[-+]?(?:\d[\d_]*\.?\d*|\.\d+)[eE][-+]?\d+$")


class _Loader(yaml.SafeLoader):
    """The safe loader, with dates and `=` left as text and 1e-3 read as the number it is."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, regex) for tag, regex in resolvers if tag not in (f"{_TAG}timestamp", f"{_TAG}value")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(f"{_TAG}float", _FLOAT, list("-+.0123456789"))


class _Stop(Exception):
    """The text cannot be read any further."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.line = line


def read_file(path: Path, shown: str, problems: Problems) -> Entry:
    """The file's content as a section; what is wrong with it goes to `problems`."""
    empty = Entry({}, Origin("file", shown, 1))
    try:
        if path.stat().st_size > MAX_BYTES:
            problems.found.append(Problem(shown, f"the file is over {MAX_BYTES >> 20} MiB"))
            return empty
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        problems.found.append(Problem(shown, f"cannot be read: {error.strerror or error}"))
        return empty
    except UnicodeDecodeError as error:
        problems.found.append(Problem(shown, f"is not UTF-8 text (byte {error.start})"))
        return empty
    try:
        root = _Reader(shown, problems).read(text)
    except _Stop as stop:
        problems.found.append(Problem("", stop.message, Origin("file", shown, stop.line or 1)))
        return empty
    if root.value is None:
        return empty
    if not root.is_section:
        problems.found.append(Problem("", "expected `key: value` lines at the top level", root.origin))
        return empty
    return root


def read_value(text: str, origin: Origin, place: str, problems: Problems) -> Entry | None:
    """One value written as YAML, as environment variables and flags hold it; None when it cannot be read."""
    try:
        return _Reader("", problems, origin).read(text, place)
    except _Stop as stop:
        problems.found.append(Problem(place, f"is not a YAML value: {stop.message}", origin))
        return None


class _Reader:
    """Turns YAML nodes into entries, following aliases within the limits."""

    def __init__(self, name: str, problems: Problems, origin: Origin | None = None) -> None:
        self.name = name
        self.problems = problems
        self.fixed = origin
        self.values = 0
        self.constructor = yaml.constructor.SafeConstructor()

    def read(self, text: str, place: str = "") -> Entry:
        try:
            node = yaml.compose(text, _Loader)
        except RecursionError:
            raise _Stop("values are nested too deeply") from None
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            raise _Stop(f"not valid YAML: {error.problem or error.context}", mark.line + 1 if mark else None) from None
        except (yaml.YAMLError, ValueError) as error:
            raise _Stop(f"not valid YAML: {str(error).splitlines()[0]}") from None
        if node is None:
            return Entry(None, self.fixed or Origin("file", self.name, 1), place)
        return self.build(node, place)

    def build(self, node: yaml.Node, place: str, depth: int = 0) -> Entry:
        self.values += 1
        if depth > MAX_DEPTH:
            raise _Stop("values are nested too deeply", node.start_mark.line + 1)
        if self.values > MAX_VALUES:
            raise _Stop(f"more than {MAX_VALUES} values, aliases followed", node.start_mark.line + 1)
        origin = self.origin(node)
        if isinstance(node, yaml.MappingNode) and node.tag == f"{_TAG}map":
            return Entry(self.mapping(node, place, depth), origin, place)
        if isinstance(node, yaml.SequenceNode) and node.tag == f"{_TAG}seq":
            items = [self.build(child, f"{place}[{i}]", depth + 1).plain() for i, child in enumerate(node.value)]
            return Entry(items, origin, place)
        return Entry(self.scalar(node), origin, place)

    def mapping(self, node: yaml.MappingNode, place: str, depth: int) -> dict[Any, Entry]:
        inherited: dict[Any, Entry] = {}
        own: dict[Any, Entry] = {}
        for key_node, value_node in node.value:
            if key_node.tag == f"{_TAG}merge":
                for key, entry in self.inherited(value_node, place, depth):
                    inherited.setdefault(key, entry)
                continue
            key = self.key(key_node)
            here = f"{place}.{key}" if place else str(key)
            entry = self.build(value_node, here, depth + 1)
            entry = Entry(entry.value, self.origin(key_node), here)
            if key in own:
                self.problems.add(entry, f"is given twice, first {self.line_of(own[key])}")
            own[key] = entry
        return inherited | own

    def inherited(self, node: yaml.Node, place: str, depth: int) -> list[tuple[Any, Entry]]:
        """What `<<:` brings in: one mapping, or a list of them where the first one wins."""
        sources = node.value if isinstance(node, yaml.SequenceNode) else [node]
        pairs: list[tuple[Any, Entry]] = []
        for source in sources:
            entry = self.build(source, place, depth + 1)
            if not entry.is_section:
                raise _Stop("`<<` takes a mapping", node.start_mark.line + 1)
            pairs += entry.value.items()
        return pairs

    def key(self, node: yaml.Node) -> Any:
        if not isinstance(node, yaml.ScalarNode):
            raise _Stop("a key must be plain text", node.start_mark.line + 1)
        value = self.scalar(node)
        # `on`, `no` and `null` are names when they stand as keys, whatever YAML 1.1 makes of them
        return value if isinstance(value, (str, int)) and not isinstance(value, bool) else node.value

    def scalar(self, node: yaml.Node) -> Any:
        if not isinstance(node, yaml.ScalarNode) or node.tag not in _SCALARS:
            raise _Stop(f"the tag {node.tag.replace(_TAG, '!!')} is not allowed", node.start_mark.line + 1)
        try:
            return self.constructor.construct_object(node)
        except (yaml.YAMLError, ValueError, KeyError):
            raise _Stop(f"cannot read {node.value[:40]!r}", node.start_mark.line + 1) from None

    def origin(self, node: yaml.Node) -> Origin:
        return self.fixed or Origin("file", self.name, node.start_mark.line + 1)

    def line_of(self, entry: Entry) -> str:
        return f"on line {entry.origin.line}" if entry.origin.line else "before it"
