"""Sections of the config that a frozen dataclass declares, such as `server:` and `fleet:`.

Each field carries its own help and bounds, so that the checks, the JSON schema, the environment variables and
`bay config show` follow from it. A field that is such a dataclass itself is a section within the section.
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

# A Kubernetes service called `enginebay-server` puts these into every pod of its namespace; they are not meant for us.
_FROM_KUBERNETES = re.compile(r"SERVICE_(HOST|PORT)(_.*)?|PORT_\d+_(TCP|UDP|SCTP)(_.*)?")


def config_field(default: Any, help: str, **declared: Any) -> Any:
    """A field of a declared section; `declared` is what `Setting` takes beside it."""
    return field(default=default, metadata={"help": help, **declared})


class DeclaredSection(Generic[Form]):
    """One top-level section: its name, its keys by dotted name, and how to make the dataclass of what is set.

    `convert` turns a value of the declared type into the field's own, or raises `Misfit`. Paths stay text until then.
    """

    def __init__(self, name: str, section_type: type[Form], convert: Callable[[str, Any], Any]) -> None:
        self.name = name
        self.section_type = section_type
        self.convert = convert
        self.settings = _collect_settings(section_type)
        self.path_keys = frozenset(one.name for one in fields(cast(Any, section_type)) if _is_path_field(one))
        self._prefix = f"ENGINEBAY_{name.upper()}_"

    def build(self, entries: Mapping[str, ConfigEntry]) -> Form:
        """Made from checked entries by dotted name; null and what is missing stay at their defaults."""
        given = {name: entry.value for name, entry in entries.items() if entry.value is not None}
        return cast(Form, _build_section(self.section_type, given))

    def parse_variable(self, variable: str, text: str) -> list[str] | None:
        """The key that a variable such as `ENGINEBAY_SERVER_PORT` sets; None when it is not one of this section."""
        rest = variable.removeprefix(self._prefix)
        if rest == variable or _FROM_KUBERNETES.fullmatch(rest) or (rest == "PORT" and "://" in text):
            return None
        name = rest.lower()
        for inner in dict.fromkeys(one.partition(".")[0] for one in self.settings if "." in one):
            if name.startswith(f"{inner}_"):
                return [self.name, inner, name.removeprefix(f"{inner}_")]
        return [self.name, name]

    def is_text_key(self, name: str) -> bool:
        """Is a variable for this key taken as it stands, rather than read as YAML?"""
        setting = self.settings.get(name)
        types = setting.type.split("|") if setting else []
        return "str" in types and not {"bool", "int", "float"} & {*types}


def _collect_settings(section_type: Any) -> dict[str, Setting]:
    """The table of keys; those of inner sections last."""
    plain = {one.name: _to_setting(one) for one in fields(section_type) if _get_nested_section(one) is None}
    nested = [
        (one.name, _get_nested_section(one)) for one in fields(section_type) if _get_nested_section(one) is not None
    ]
    return plain | {f"{outer}.{name}": one for outer, inner in nested for name, one in _collect_settings(inner).items()}


def _get_nested_section(declared: Field[Any]) -> Any:
    """The dataclass of an inner section; None for a plain key."""
    return declared.default_factory if is_dataclass(declared.default_factory) else None


def _is_path_field(declared: Field[Any]) -> bool:
    return str(declared.type).split(" | ")[0] == "Path"


def _to_setting(declared: Field[Any]) -> Setting:
    of_paths_and_lists = {"Path": "str", "tuple[str, ...]": "list|str"}
    parts = [part for part in str(declared.type).split(" | ") if part != "None"]
    default = list(declared.default) if isinstance(declared.default, tuple) else declared.default
    told = {"type": "|".join(of_paths_and_lists.get(part, part) for part in parts), **declared.metadata}
    return Setting(default=default, **told)


def _build_section(section_type: Any, given: Mapping[str, Any]) -> Any:
    values: dict[str, Any] = {}
    for one in fields(section_type):
        inner, prefix = _get_nested_section(one), f"{one.name}."
        if inner is not None:
            within = {name.removeprefix(prefix): value for name, value in given.items() if name.startswith(prefix)}
            values[one.name] = _build_section(inner, within)
        elif one.name in given:
            values[one.name] = Path(given[one.name]) if _is_path_field(one) else given[one.name]
    return section_type(**values)
