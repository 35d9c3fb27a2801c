"""The layers of a config: preset, file, environment, flags, and the changes of a sweep point.

Only this module reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from enginebay.config.entries.config_entry import ConfigEntry, ConfigProblem, Origin, ProblemCollector
from enginebay.config.entries.yaml_reader import parse_yaml_value, read_yaml_file
from enginebay.config.sections.config_keys import SECTIONS
from enginebay.config.trusted_files import is_trusted
from enginebay.contract import Preset
from enginebay.errors import ConfigError
from enginebay.util.paths import home_dir

LOCAL_FILE = Path("enginebay.yaml")
FILE_VARIABLE = "ENGINEBAY_CONFIG"
NESTED_PREFIX = "ENGINEBAY__"
SHORT_VARIABLES = {"ENGINEBAY_ENGINE": "engine", "ENGINEBAY_MODEL": "model", "ENGINEBAY_OFFLINE": "offline"}


def find_config_file(path: Path | None, environ: Mapping[str, str]) -> Path | None:
    """Return the given file, else the one of ENGINEBAY_CONFIG, else the first default file that exists."""
    if path is not None:
        return require_file(path, "pass the path of an existing file")
    named = environ.get(FILE_VARIABLE)
    if named:
        return require_file(Path(named).expanduser(), f"{FILE_VARIABLE} is set to this path: fix or unset it")
    candidates = (LOCAL_FILE, home_dir() / "config.yaml")
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def is_found_locally(found: Path | None, path: Path | None, environ: Mapping[str, str]) -> bool:
    """Return whether the found file is used only because it is in the working directory, which may be anybody's. Pure."""
    return found == LOCAL_FILE and path is None and not environ.get(FILE_VARIABLE)


def require_file(path: Path, hint: str) -> Path:
    """Return the path. Raises `ConfigError` if there is no file."""
    if not path.exists():
        raise ConfigError(f"config file not found: {path}", hint)
    if path.is_dir():
        raise ConfigError(f"{path} is a directory, not a config file", hint)
    return path


def build_preset_layer(preset: Preset | None) -> ConfigEntry:
    return (
        ConfigEntry({}) if preset is None else _to_entry(preset.config, "", Origin("preset", f"preset {preset.name}"))
    )


def read_file_layer(path: Path | None, problems: ProblemCollector, needs_trust: bool = False) -> ConfigEntry:
    """Read the file. With `needs_trust` its values are trusted only if the user trusted this very content."""
    if path is None:
        return ConfigEntry({})
    return read_yaml_file(path, str(path), problems, partial(is_trusted, path) if needs_trust else lambda _: True)


def read_environment_layer(environ: Mapping[str, str], problems: ProblemCollector) -> ConfigEntry:
    """Read variables such as `ENGINEBAY_ENGINE` and `ENGINEBAY_SERVER_PORT`, and `ENGINEBAY__VLLM__MAX_NUM_SEQS` for any key.

    Empty means unset.
    """
    root = ConfigEntry({}, Origin("environment"))
    for variable, text in sorted(environ.items()):
        path = _parse_variable(variable, text)
        if path is None or text == "":
            continue
        origin, key_path = Origin("environment", variable), ".".join(path)
        if not all(path):
            problems.items.append(ConfigProblem(key_path, "empty name between underscores", origin))
            continue
        short = not variable.startswith(NESTED_PREFIX)
        is_text = short and (path in (["engine"], ["model"]) or _is_text_key(path))
        entry = ConfigEntry(text) if is_text else parse_yaml_value(text, origin, key_path, problems)
        if entry is not None:
            _insert_entry(root, path, ConfigEntry(entry.value, origin, key_path, text), problems)
    return root


def _parse_variable(variable: str, text: str) -> list[str] | None:
    if variable in SHORT_VARIABLES:
        return [SHORT_VARIABLES[variable]]
    if variable.startswith(NESTED_PREFIX):
        return variable.removeprefix(NESTED_PREFIX).lower().split("__")
    paths = (section.parse_variable(variable, text) for section in SECTIONS.values())
    return next((path for path in paths if path is not None), None)


def _is_text_key(path: list[str]) -> bool:
    section = SECTIONS.get(path[0])
    return section is not None and section.is_text_key(".".join(path[1:]))


def build_flag_layer(flags: Mapping[str, Any], problems: ProblemCollector) -> ConfigEntry:
    """Build a layer from flags by dotted key or nested. None means unset."""
    root = ConfigEntry({}, Origin("flag"))
    for key, value in flags.items():
        if value is not None:
            _insert_entry(root, key.split("."), _to_entry(_drop_nulls(value), key, Origin("flag")), problems)
    return root


def build_sweep_layer(changes: Mapping[str, Any], problems: ProblemCollector, untrusted_file: str = "") -> ConfigEntry:
    """Build a layer from a sweep point by dotted key. Here null unsets a value."""
    root = ConfigEntry({}, Origin("sweep", untrusted_file, trusted=not untrusted_file))
    for key, value in changes.items():
        _insert_entry(root, key.split("."), _to_entry(value, key, root.origin), problems)
    return root


def parse_assignments(texts: list[str]) -> dict[str, Any]:
    """Parse `KEY=VALUE` arguments as flags, with YAML values."""
    flags: dict[str, Any] = {}
    problems = ProblemCollector()
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise ConfigError(f"{text!r} is not KEY=VALUE", "for example: --set vllm.max_num_seqs=64")
        entry = parse_yaml_value(value, Origin("flag"), key, problems)
        if entry is None:
            raise ConfigError(str(problems.items[0]), "quote text that looks like YAML")
        flags[key] = entry.to_plain()
    return flags


def _drop_nulls(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    return {key: _drop_nulls(child) for key, child in value.items() if child is not None}


def _to_entry(value: Any, key_path: str, origin: Origin) -> ConfigEntry:
    if isinstance(value, Mapping):
        prefix = f"{key_path}." if key_path else ""
        return ConfigEntry(
            {key: _to_entry(child, f"{prefix}{key}", origin) for key, child in value.items()}, origin, key_path
        )
    return ConfigEntry(list(value) if isinstance(value, tuple) else value, origin, key_path)


def _insert_entry(root: ConfigEntry, path: list[str], entry: ConfigEntry, problems: ProblemCollector) -> None:
    """Insert an entry at a path, creating the sections on the way."""
    current = root
    for depth, name in enumerate(path[:-1], 1):
        current = current.value.setdefault(name, ConfigEntry({}, entry.origin, ".".join(path[:depth])))
        if not current.is_section:
            problems.add(entry, f"conflicts with {current.origin}, which sets {current.key_path} as a whole")
            return
    name = path[-1]
    present = current.value.get(name)
    if present is None:
        current.value[name] = entry
    elif present.is_section and entry.is_section:
        present.value.update(entry.value)
    else:
        problems.add(entry, f"is also set by {present.origin}")
