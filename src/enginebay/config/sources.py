"""The layers a config is made of: preset, file, environment, flags, and the changes of a sweep's point.

Only this module reads any of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from enginebay.config.keys import SECTIONS
from enginebay.config.presets import Preset
from enginebay.config.tree import Entry, Origin, Problem, Problems
from enginebay.config.yaml_file import read_file, read_value
from enginebay.errors import ConfigError
from enginebay.home import home

FILE_VARIABLE = "ENGINEBAY_CONFIG"
NESTED_PREFIX = "ENGINEBAY__"
SHORT_VARIABLES = {"ENGINEBAY_ENGINE": "engine", "ENGINEBAY_MODEL": "model", "ENGINEBAY_OFFLINE": "offline"}


def find_file(given: Path | None, environ: Mapping[str, str]) -> Path | None:
    """The config file to read: as asked for, else the first default place that has one."""
    if given is not None:
        return _existing(given, "give the path of a file that exists")
    named = environ.get(FILE_VARIABLE)
    if named:
        return _existing(Path(named).expanduser(), f"{FILE_VARIABLE} names it: correct or unset the variable")
    candidates = (Path("enginebay.yaml"), home() / "config.yaml")
    return next((path for path in candidates if path.is_file()), None)


def _existing(path: Path, hint: str) -> Path:
    if not path.exists():
        raise ConfigError(f"there is no config file {path}", hint)
    if path.is_dir():
        raise ConfigError(f"{path} is a directory, not a config file", hint)
    return path


def preset_layer(preset: Preset | None) -> Entry:
    return Entry({}) if preset is None else _entry(preset.config, "", Origin("preset", f"preset {preset.name}"))


def file_layer(path: Path | None, problems: Problems) -> Entry:
    return Entry({}) if path is None else read_file(path, str(path), problems)


def environment_layer(environ: Mapping[str, str], problems: Problems) -> Entry:
    """`ENGINEBAY_ENGINE`, `ENGINEBAY_SERVER_PORT` and their like, and `ENGINEBAY__VLLM__MAX_NUM_SEQS` for any key.

    Empty means not set.
    """
    root = Entry({}, Origin("environment"))
    for variable, text in sorted(environ.items()):
        path = _variable_path(variable, text)
        if path is None or text == "":
            continue
        origin, place = Origin("environment", variable), ".".join(path)
        if not all(path):
            problems.found.append(Problem(place, "an empty name between the underscores", origin))
            continue
        # a name is never read as YAML
        short = not variable.startswith(NESTED_PREFIX)
        names_something = short and (path in (["engine"], ["model"]) or _takes_text(path))
        entry = Entry(text) if names_something else read_value(text, origin, place, problems)
        if entry is not None:
            _put(root, path, Entry(entry.value, origin, place, text), problems)
    return root


def _variable_path(variable: str, text: str) -> list[str] | None:
    if variable in SHORT_VARIABLES:
        return [SHORT_VARIABLES[variable]]
    if variable.startswith(NESTED_PREFIX):
        return variable.removeprefix(NESTED_PREFIX).lower().split("__")
    paths = (section.variable_path(variable, text) for section in SECTIONS.values())
    return next((path for path in paths if path is not None), None)


def _takes_text(path: list[str]) -> bool:
    section = SECTIONS.get(path[0])
    return section is not None and section.takes_text(".".join(path[1:]))


def flag_layer(flags: Mapping[str, Any], problems: Problems) -> Entry:
    """Flags by dotted key or nested; None is a flag that was not given."""
    root = Entry({}, Origin("flag"))
    for key, value in flags.items():
        if value is not None:
            _put(root, key.split("."), _entry(_without_null(value), key, Origin("flag")), problems)
    return root


def point_layer(changes: Mapping[str, Any], problems: Problems) -> Entry:
    """One point of a sweep by dotted key; here null takes a value back."""
    root = Entry({}, Origin("sweep"))
    for key, value in changes.items():
        _put(root, key.split("."), _entry(value, key, root.origin), problems)
    return root


def assignment_flags(texts: list[str]) -> dict[str, Any]:
    """`KEY=VALUE` arguments as flags, the value read as YAML."""
    flags: dict[str, Any] = {}
    problems = Problems()
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise ConfigError(f"{text!r} is not KEY=VALUE", "for example: --set vllm.max_num_seqs=64")
        entry = read_value(value, Origin("flag"), key, problems)
        if entry is None:
            raise ConfigError(str(problems.found[0]), "quote text that looks like YAML")
        flags[key] = entry.plain()
    return flags


def _without_null(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    return {key: _without_null(child) for key, child in value.items() if child is not None}


def _entry(value: Any, place: str, origin: Origin) -> Entry:
    if isinstance(value, Mapping):
        prefix = f"{place}." if place else ""
        return Entry({key: _entry(child, f"{prefix}{key}", origin) for key, child in value.items()}, origin, place)
    return Entry(list(value) if isinstance(value, tuple) else value, origin, place)


def _put(root: Entry, path: list[str], entry: Entry, problems: Problems) -> None:
    """Hang an entry into the tree, making the sections on the way."""
    current = root
    for depth, name in enumerate(path[:-1], 1):
        current = current.value.setdefault(name, Entry({}, entry.origin, ".".join(path[:depth])))
        if not current.is_section:
            problems.add(entry, f"{current.place} is set as a whole by {current.origin}")
            return
    name = path[-1]
    present = current.value.get(name)
    if present is None:
        current.value[name] = entry
    elif present.is_section and entry.is_section:
        present.value.update(entry.value)
    else:
        problems.add(entry, f"is also set by {present.origin}")
