"""Reads YAML into entries with line numbers. Allows safe tags only and bounds size, depth and aliases."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from enginebay.config.entries.config_entry import ConfigEntry, ConfigProblem, Origin, ProblemCollector
from enginebay.util.atomic_file import read_within

MAX_BYTES = 1 << 20
MAX_DEPTH = 40
MAX_NUMBER_CHARS = 64  # longer ones cannot be converted to text or to a float
_READ_TIMEOUT_S = 10.0  # for a pipe that nobody writes to
MAX_VALUES = 50_000  # counted after expanding aliases, against alias bombs

_TAG = "tag:yaml.org,2002:"
_SCALARS = {f"{_TAG}{name}" for name in ("str", "int", "float", "bool", "null")}
_NUMBERS = {f"{_TAG}int", f"{_TAG}float"}
_FLOAT = re.compile(r"^[-+]?(?:\d[\d_]*(?:\.\d*)?|\.\d+)[eE][-+]?\d+$")


class _Loader(yaml.SafeLoader):
    """The safe loader, except that dates and `=` stay text and 1e-3 is a number."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, regex) for tag, regex in resolvers if tag not in (f"{_TAG}timestamp", f"{_TAG}value")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(f"{_TAG}float", _FLOAT, list("-+.0123456789"))


class _YamlReadError(Exception):
    """The text cannot be parsed."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.line = line


def read_yaml_file(
    path: Path, display_name: str, problems: ProblemCollector, is_trusted: Callable[[bytes], bool] = lambda _: True
) -> ConfigEntry:
    """Return the file's content as a section. Adds problems to `problems`. Never waits for long.

    `is_trusted` decides on the content whether its values are trusted.
    """
    empty = ConfigEntry({}, Origin("file", display_name, 1))
    try:
        content = read_within(path, MAX_BYTES + 1, _READ_TIMEOUT_S)
        if len(content) > MAX_BYTES:
            problems.items.append(ConfigProblem(display_name, f"the file is over {MAX_BYTES >> 20} MiB"))
            return empty
        text = content.decode("utf-8-sig")
    except OSError as error:
        problems.items.append(ConfigProblem(display_name, f"cannot be read: {error.strerror or error}"))
        return empty
    except UnicodeDecodeError as error:
        problems.items.append(ConfigProblem(display_name, f"is not UTF-8 text (byte {error.start})"))
        return empty
    try:
        root = _YamlReader(display_name, problems, trusted=is_trusted(content)).read(text)
    except _YamlReadError as stop:
        problems.items.append(ConfigProblem("", stop.message, Origin("file", display_name, stop.line or 1)))
        return empty
    if root.value is None:
        return empty
    if not root.is_section:
        problems.items.append(ConfigProblem("", "expected `key: value` lines at the top level", root.origin))
        return empty
    return root


def parse_yaml_value(text: str, origin: Origin, key_path: str, problems: ProblemCollector) -> ConfigEntry | None:
    """Parse one YAML value from a variable or flag; None if it cannot be parsed."""
    try:
        return _YamlReader("", problems, origin).read(text, key_path)
    except _YamlReadError as stop:
        problems.items.append(ConfigProblem(key_path, f"is not a YAML value: {stop.message}", origin))
        return None


class _YamlReader:
    """Converts YAML nodes to entries, expanding aliases within the limits."""

    def __init__(
        self, name: str, problems: ProblemCollector, origin: Origin | None = None, trusted: bool = True
    ) -> None:
        self.name = name
        self.trusted = trusted
        self.problems = problems
        self.fixed_origin = origin
        self.value_count = 0
        self.constructor = yaml.constructor.SafeConstructor()

    def read(self, text: str, key_path: str = "") -> ConfigEntry:
        try:
            node = yaml.compose(text, _Loader)
        except RecursionError:
            raise _YamlReadError("values are nested too deeply") from None
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            raise _YamlReadError(
                f"not valid YAML: {error.problem or error.context}", mark.line + 1 if mark else None
            ) from None
        except (yaml.YAMLError, ValueError) as error:
            raise _YamlReadError(f"not valid YAML: {str(error).splitlines()[0]}") from None
        if node is None:
            return ConfigEntry(None, self.fixed_origin or Origin("file", self.name, 1, self.trusted), key_path)
        return self.build(node, key_path)

    def build(self, node: yaml.Node, key_path: str, depth: int = 0) -> ConfigEntry:
        self.value_count += 1
        if depth > MAX_DEPTH:
            raise _YamlReadError("values are nested too deeply", node.start_mark.line + 1)
        if self.value_count > MAX_VALUES:
            raise _YamlReadError(f"more than {MAX_VALUES} values after expanding aliases", node.start_mark.line + 1)
        origin = self.find_origin(node)
        if isinstance(node, yaml.MappingNode) and node.tag == f"{_TAG}map":
            return ConfigEntry(self.build_mapping(node, key_path, depth), origin, key_path)
        if isinstance(node, yaml.SequenceNode) and node.tag == f"{_TAG}seq":
            items = [self.build(child, f"{key_path}[{i}]", depth + 1).to_plain() for i, child in enumerate(node.value)]
            return ConfigEntry(items, origin, key_path)
        return ConfigEntry(self.parse_scalar(node), origin, key_path)

    def build_mapping(self, node: yaml.MappingNode, key_path: str, depth: int) -> dict[Any, ConfigEntry]:
        inherited: dict[Any, ConfigEntry] = {}
        own: dict[Any, ConfigEntry] = {}
        for key_node, value_node in node.value:
            if key_node.tag == f"{_TAG}merge":
                for key, entry in self.read_merge_key(value_node, key_path, depth):
                    inherited.setdefault(key, entry)
                continue
            key = self.parse_key(key_node)
            here = f"{key_path}.{key}" if key_path else str(key)
            entry = self.build(value_node, here, depth + 1)
            entry = ConfigEntry(entry.value, self.find_origin(key_node), here)
            if key in own:
                self.problems.add(entry, f"duplicate key, first set {self.describe_line(own[key])}")
            own[key] = entry
        return inherited | own

    def read_merge_key(self, node: yaml.Node, key_path: str, depth: int) -> list[tuple[Any, ConfigEntry]]:
        """Read `<<:`: one mapping, or a list of mappings where the first wins."""
        sources = node.value if isinstance(node, yaml.SequenceNode) else [node]
        pairs: list[tuple[Any, ConfigEntry]] = []
        for source in sources:
            entry = self.build(source, key_path, depth + 1)
            if not entry.is_section:
                raise _YamlReadError("`<<` expects a mapping", node.start_mark.line + 1)
            pairs += entry.value.items()
        return pairs

    def parse_key(self, node: yaml.Node) -> Any:
        if not isinstance(node, yaml.ScalarNode):
            raise _YamlReadError("a key must be plain text", node.start_mark.line + 1)
        value = self.parse_scalar(node)
        # keys such as `on`, `no` and `null` stay text, despite YAML 1.1
        return value if isinstance(value, (str, int)) and not isinstance(value, bool) else node.value

    def parse_scalar(self, node: yaml.Node) -> Any:
        if not isinstance(node, yaml.ScalarNode) or node.tag not in _SCALARS:
            raise _YamlReadError(f"the tag {node.tag.replace(_TAG, '!!')} is not allowed", node.start_mark.line + 1)
        if node.tag in _NUMBERS and len(node.value) > MAX_NUMBER_CHARS:
            raise _YamlReadError(
                f"a number has {len(node.value)} characters; the maximum is {MAX_NUMBER_CHARS}",
                node.start_mark.line + 1,
            )
        try:
            return self.constructor.construct_object(node)
        except (yaml.YAMLError, ValueError, KeyError):
            raise _YamlReadError(f"cannot read {node.value[:40]!r}", node.start_mark.line + 1) from None

    def find_origin(self, node: yaml.Node) -> Origin:
        return self.fixed_origin or Origin("file", self.name, node.start_mark.line + 1, self.trusted)

    def describe_line(self, entry: ConfigEntry) -> str:
        return f"on line {entry.origin.line}" if entry.origin.line else "before it"
