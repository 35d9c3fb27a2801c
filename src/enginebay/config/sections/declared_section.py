"""Config sections declared as frozen dataclasses, such as `server:` and `fleet:`.

Each field carries its help and bounds. Validation, JSON schema, environment variables and `bay config show` derive from
them. A field that is such a dataclass is a nested section.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import Field, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from enginebay.config.entries.config_entry import ConfigEntry
from enginebay.contract import Setting

Form = TypeVar("Form")

# A Kubernetes service called `enginebay-server` sets these in every pod of its namespace. They are not configuration.
_FROM_KUBERNETES = re.compile(r"SERVICE_(HOST|PORT)(_.*)?|PORT_\d+_(TCP|UDP|SCTP)(_.*)?")


def config_field(default: Any, help: str, **declared: Any) -> Any:
    """Declare a field of a section. `declared` holds further arguments of `Setting`."""
    return field(default=default, metadata={"help": help, **declared})


class DeclaredSection(Generic[Form]):
    """One top-level section: its name, its keys by dotted name, and how to build its dataclass.

    `convert` turns a value of the declared type into the field's type, or raises `InvalidValue`. Paths stay text.
    """

    def __init__(self, name: str, section_type: type[Form], convert: Callable[[str, Any], Any]) -> None:
        self.name = name
        self.section_type = section_type
        self.convert = convert
        self.settings = _collect_settings(section_type)
        self.path_keys = frozenset(item.name for item in fields(cast(Any, section_type)) if _is_path_field(item))
        self._prefix = f"ENGINEBAY_{name.upper()}_"

    def build(self, entries: Mapping[str, ConfigEntry]) -> Form:
        """Build the dataclass from checked entries by dotted name. Null and missing keys keep their defaults."""
        values = {name: entry.value for name, entry in entries.items() if entry.value is not None}
        return cast(Form, _build_section(self.section_type, values))

    def parse_variable(self, variable: str, text: str) -> list[str] | None:
        """Return the key that a variable such as `ENGINEBAY_SERVER_PORT` sets; None if it is not of this section."""
        rest = variable.removeprefix(self._prefix)
        if rest == variable or _FROM_KUBERNETES.fullmatch(rest) or (rest == "PORT" and "://" in text):
            return None
        name = rest.lower()
        for inner in dict.fromkeys(key.partition(".")[0] for key in self.settings if "." in key):
            if name.startswith(f"{inner}_"):
                return [self.name, inner, name.removeprefix(f"{inner}_")]
        return [self.name, name]

    def is_text_key(self, name: str) -> bool:
        """Return whether a variable for this key is plain text rather than YAML."""
        setting = self.settings.get(name)
        types = setting.type.split("|") if setting else []
        return "str" in types and not {"bool", "int", "float"} & {*types}


def _collect_settings(section_type: Any) -> dict[str, Setting]:
    """Collect the settings by dotted name, nested sections last."""
    nested = {item.name: _get_nested_section(item) for item in fields(section_type)}
    plain = {item.name: _to_setting(item) for item in fields(section_type) if nested[item.name] is None}
    inner = {outer: _collect_settings(section) for outer, section in nested.items() if section is not None}
    return plain | {f"{outer}.{name}": setting for outer, table in inner.items() for name, setting in table.items()}


def _get_nested_section(declared: Field[Any]) -> Any:
    """Return the dataclass of a nested section; None for a plain key."""
    return declared.default_factory if is_dataclass(declared.default_factory) else None


def _is_path_field(declared: Field[Any]) -> bool:
    return str(declared.type).split(" | ")[0] == "Path"


def _to_setting(declared: Field[Any]) -> Setting:
    type_names = {"Path": "str", "tuple[str, ...]": "list|str"}
    parts = [part for part in str(declared.type).split(" | ") if part != "None"]
    default = list(declared.default) if isinstance(declared.default, tuple) else declared.default
    arguments = {"type": "|".join(type_names.get(part, part) for part in parts), **declared.metadata}
    return Setting(default=default, **arguments)


def _build_section(section_type: Any, values: Mapping[str, Any]) -> Any:
    arguments: dict[str, Any] = {}
    for item in fields(section_type):
        inner, prefix = _get_nested_section(item), f"{item.name}."
        if inner is not None:
            nested = {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}
            arguments[item.name] = _build_section(inner, nested)
        elif item.name in values:
            arguments[item.name] = Path(values[item.name]) if _is_path_field(item) else values[item.name]
    return section_type(**arguments)
