"""The tables of keys that do not belong to one engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from difflib import get_close_matches
from typing import Any

from enginebay.config.entries.config_entry import ConfigEntry, ProblemCollector
from enginebay.config.entries.value_coercion import InvalidValue, coerce_value, split_list
from enginebay.config.sections.declared_section import DeclaredSection
from enginebay.config.sections.experiment_section import EXPERIMENT_KEYS
from enginebay.config.sections.fleet_section import FLEET_SECTION, SLEEP_CHOICES, SLEEP_TYPE, convert_sleep_value
from enginebay.config.sections.server_section import SERVER_SECTION
from enginebay.contract import RANGES, EngineSpec, Sampling, Setting, Support

AUTO = "auto"

ROOT_KEYS: dict[str, Setting] = {
    "engine": Setting("str", "auto, or the engine that runs models which name none", default=AUTO),
    "model": Setting("str", "the model to run when none is named"),
    "offline": Setting("bool", "never use the network", default=False),
}

ROOT_ALIASES = {"backend": "engine", "model_name": "model"}

SECTIONS: dict[str, DeclaredSection[Any]] = {one.name: one for one in (SERVER_SECTION, FLEET_SECTION)}

# Settings that mean the same on every engine and may stand at the top level. Each engine declares them in its spec.
UNIVERSAL_KEYS = ("fp_precision", "quantization", "batching", "sharding")

# Keys of an experiment that are request parameters under another name.
SAMPLING_ALIASES = {"max_output_tokens": "max_tokens", "min_output_tokens": "min_tokens", "random_seed": "seed"}

# The names of the table in `enginebay.text.tool_calls.format_registry`, which is not needed to read a config (a test compares them).
TOOL_FORMATS = (AUTO, "hermes", "llama3", "mistral", "qwen", "json")

# What may send a request to the next engine of a model's `fallback`.
FALLBACK_TRIGGERS = ("unavailable", "architecture", "load", "queue", "context", "capability")

MODEL_KEYS: dict[str, Setting] = {
    "source": Setting("str", "where its files come from: hf:org/name@revision, pypi:..., file:PATH"),
    "engine": Setting("str", "auto, or the engine that runs it"),
    "trust_remote_code": Setting("bool", "run Python code that comes with the model's files"),
    "task": Setting("str", "what it is for", choices=("generate", "embed"), default="generate"),
    "tool_format": Setting(
        "str", "how it writes tool calls; auto goes by its chat template", choices=TOOL_FORMATS, default=AUTO
    ),
    "pinned": Setting("bool", "never unloaded to make room, nor when idle", default=False),
    "load": Setting(
        "str", "when it is loaded: as the server starts, or on first use", choices=("start", "use"), default="start"
    ),
    "idle_s": Setting("float", "unloaded when nobody asked for it so long; unset: as fleet.idle_s", minimum=1),
    "memory_bytes": Setting("int", "RAM it needs; unset: predicted, then measured", minimum=1),
    "sleep": Setting(SLEEP_TYPE, "how it is put to sleep; unset: as fleet.sleep", choices=SLEEP_CHOICES),
    "fallback": Setting("list|str", "engines to try in turn when its own cannot answer", default=[]),
    "fallback_on": Setting("list|str", "what makes a request fall back", default=list(FALLBACK_TRIGGERS)),
    "may_leave_host": Setting(
        "bool", "its prompts may be sent to another host; a remote engine needs it", default=False
    ),
    "smaller_on_out_of_memory": Setting(
        "bool", "when memory does not suffice to load it, try once with smaller settings", default=False
    ),
}

TRUST_KEY = "trust_remote_code"


def convert_model_value(name: str, value: Any) -> Any:
    """The value as `ModelConfig` holds it, engines as they were written. Raises `Misfit`."""
    if name == "sleep":
        return convert_sleep_value(value)
    if name == "fallback":
        return split_list(value)
    if name == "fallback_on" and value is not None:
        return tuple(dict.fromkeys(_parse_trigger(item) for item in split_list(value)))
    return value


def _parse_trigger(item: Any) -> str:
    if item in FALLBACK_TRIGGERS:
        return str(item)
    near = get_close_matches(str(item), FALLBACK_TRIGGERS, n=1)
    raise InvalidValue(
        f"has {str(item)[:60]!r}, " + (f"did you mean {near[0]}?" if near else f"known: {', '.join(FALLBACK_TRIGGERS)}")
    )


def _to_setting_type(annotation: str) -> str:
    known = {"tuple[str, ...]": "list|str", "tuple[int, ...]": "list|int", "Mapping[int, float]": "map"}
    return known.get(annotation, annotation.split(" | ")[0])


def _build_sampling_setting(name: str, annotation: str) -> Setting:
    low, high = RANGES.get(name, (None, None))
    return Setting(_to_setting_type(annotation), "default of this request parameter", minimum=low, maximum=high)


SAMPLING_KEYS: dict[str, Setting] = {
    f.name: _build_sampling_setting(f.name, str(f.type)) for f in fields(Sampling) if f.name != "guided"
}


def convert_sampling_value(name: str, value: Any) -> Any:
    """The value as `Sampling` holds it. Raises `Misfit`."""
    if name == "stop":
        return _parse_items(value, str, "text")
    if name == "stop_token_ids":
        return _parse_items(value, int, "token ids")
    if name == "logit_bias" and value is not None:
        try:
            return {int(token): float(bias) for token, bias in value.items()}
        except (TypeError, ValueError):
            raise InvalidValue("maps token ids to numbers") from None
    return value


def _parse_items(value: Any, kind: type, what: str) -> Any:
    if value is None:
        return None
    items = tuple(value) if isinstance(value, list) else (value,)
    if not all(isinstance(item, kind) and not isinstance(item, bool) for item in items):
        raise InvalidValue(f"takes a list of {what}")
    return items


def _collect_universal_settings(specs: Mapping[str, EngineSpec]) -> dict[str, list[Setting]]:
    """What engines declare for the settings they share; one that has no use for it has no say in its values."""
    declared: dict[str, list[Setting]] = {}
    for spec in specs.values():
        for name, setting in spec.settings.items():
            if name.split(".")[0] in UNIVERSAL_KEYS:
                declared.setdefault(name, []).append(setting)
    applied = {name: [one for one in found if not _is_refused(one)] for name, found in declared.items()}
    return {name: applied[name] or found for name, found in declared.items()}


def _is_refused(setting: Setting) -> bool:
    return setting.capability.support is Support.REFUSES


class ConfigKeys:
    """Every key a config may hold, with the engines of this host."""

    def __init__(self, specs: Mapping[str, EngineSpec]) -> None:
        self.specs = specs
        self.kinds_by_name = {name: kind for kind, spec in specs.items() for name in (kind, *spec.aliases)}
        self.universal = _collect_universal_settings(specs)

    def resolve_kind(self, name: str) -> str | None:
        return self.kinds_by_name.get(name)

    def require_kind(self, name: Any, entry: ConfigEntry, problems: ProblemCollector, *others: str) -> str | None:
        """The kind behind an engine's name or alias; reported when there is none. `others` may stand there too."""
        kind = self.kinds_by_name.get(name) if isinstance(name, str) else None
        if kind is None:
            near = get_close_matches(str(name), [*others, *self.kinds_by_name], n=1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join([*others, *self.specs])}"
            problems.add(entry, f"there is no engine called {name!r}; {hint}")
        return kind

    def require_kinds(self, entry: ConfigEntry, problems: ProblemCollector) -> ConfigEntry:
        """A list of engines as kinds, each once; whatever else is in it is reported and left out."""
        found: dict[str, None] = {}
        for name in entry.value or ():
            kind = self.require_kind(name, entry, problems)
            if kind in found:
                problems.add(entry, f"names {kind} twice")
            elif kind is not None:
                found[kind] = None
        return entry if entry.value is None else replace(entry, value=tuple(found))

    def list_section_names(self) -> list[str]:
        """What keys begin with that are the configuration's own, or an engine's by its full name."""
        return [
            *ROOT_KEYS, *ROOT_ALIASES, "models", *SECTIONS, "inference", "sampling", "decoder", *SAMPLING_ALIASES, *self.kinds_by_name
        ]  # fmt: skip

    def list_top_level_keys(self) -> list[str]:
        return [
            *self.list_section_names(),
            *UNIVERSAL_KEYS,
            *dict.fromkeys(name.split(".")[0] for name in EXPERIMENT_KEYS),
        ]

    def list_all_keys(self) -> list[str]:
        """Every known key with its full dotted place."""
        found = [*self.list_top_level_keys(), *EXPERIMENT_KEYS, *self.universal]
        found += [f"sampling.{name}" for name in SAMPLING_KEYS]
        found += [f"{section.name}.{name}" for section in SECTIONS.values() for name in section.settings]
        for kind, spec in self.specs.items():
            found += [f"{kind}.{name}" for name in (*spec.settings, *spec.retired)]
        return list(dict.fromkeys(found))

    def report_unknown_key(self, problems: ProblemCollector, entry: ConfigEntry, siblings: Iterable[str]) -> None:
        """Report a key nobody knows, with the nearest one that somebody does."""
        parent, _, name = entry.key_path.rpartition(".")
        here = list(dict.fromkeys(siblings))
        near = get_close_matches(name, here, n=1, cutoff=0.7)
        if near:
            problems.add(entry, f"unknown key; did you mean {f'{parent}.' if parent else ''}{near[0]}?")
            return
        elsewhere = self._find_similar_key(name)
        if elsewhere == entry.key_path:
            problems.add(entry, "a key of the configuration, and no setting of this engine")
            return
        if elsewhere:
            problems.add(entry, f"unknown key here; did you mean {elsewhere}?")
            return
        listed = f"; known here: {', '.join(sorted(here))}" if len(here) <= 12 else ""  # the error's hint says where
        problems.add(entry, f"unknown key{listed}")

    def _find_similar_key(self, name: str) -> str | None:
        places = self.list_all_keys()
        exact = [place for place in places if place.rpartition(".")[2] == name]
        if exact:
            return " or ".join(exact[:2])
        near = get_close_matches(name, [place.rpartition(".")[2] for place in places], n=1, cutoff=0.8)
        return self._find_similar_key(near[0]) if near else None


def check_entry(setting: Setting, entry: ConfigEntry, problems: ProblemCollector) -> ConfigEntry | None:
    """The entry with its value as the setting takes it; None, and a problem, when it does not fit."""
    try:
        return ConfigEntry(coerce_value(setting, entry), entry.origin, entry.key_path, entry.raw)
    except InvalidValue as misfit:
        problems.add(entry, str(misfit))
        return None


def check_sampling_entry(name: str, entry: ConfigEntry, problems: ProblemCollector) -> ConfigEntry | None:
    """The entry as a default of a request parameter; None, and a problem, when it does not fit."""
    return _check_and_convert(name, SAMPLING_KEYS[name], convert_sampling_value, entry, problems)


def check_section_entry(
    section: DeclaredSection[Any], name: str, entry: ConfigEntry, problems: ProblemCollector
) -> ConfigEntry | None:
    """The entry as a key of a declared section; None, and a problem, when it does not fit."""
    return _check_and_convert(name, section.settings[name], section.convert, entry, problems)


def check_model_entry(name: str, entry: ConfigEntry, problems: ProblemCollector) -> ConfigEntry | None:
    """The entry as a key of a model; None, and a problem, when it does not fit."""
    return _check_and_convert(name, MODEL_KEYS[name], convert_model_value, entry, problems)


def _check_and_convert(
    name: str, setting: Setting, convert: Callable[[str, Any], Any], entry: ConfigEntry, problems: ProblemCollector
) -> ConfigEntry | None:
    found = check_entry(setting, entry, problems)
    if found is None:
        return None
    try:
        return replace(found, value=convert(name, found.value))
    except InvalidValue as misfit:
        problems.add(entry, str(misfit))
        return None
