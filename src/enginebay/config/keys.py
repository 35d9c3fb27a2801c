"""The tables of keys that do not belong to one engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from difflib import get_close_matches
from typing import Any

from enginebay.config.declared import DeclaredSection
from enginebay.config.experiment import EXPERIMENT
from enginebay.config.fleet import FLEET, SLEEP, SLEEP_TYPE, sleep_value
from enginebay.config.server import SERVER
from enginebay.config.tree import Entry, Problems
from enginebay.config.values import Misfit, fit, listed
from enginebay.contract import RANGES, EngineSpec, Sampling, Setting, Support

AUTO = "auto"

ROOT: dict[str, Setting] = {
    "engine": Setting("str", "auto, or the engine that runs models which name none", default=AUTO),
    "model": Setting("str", "the model to run when none is named"),
    "offline": Setting("bool", "never use the network", default=False),
}

ROOT_ALIASES = {"backend": "engine", "model_name": "model"}

SECTIONS: dict[str, DeclaredSection[Any]] = {one.name: one for one in (SERVER, FLEET)}

# Settings that mean the same on every engine and may stand at the top level. Each engine declares them in its spec.
UNIVERSAL = ("fp_precision", "quantization", "batching", "sharding")

# Keys of an experiment that are request parameters under another name.
TO_SAMPLING = {"max_output_tokens": "max_tokens", "min_output_tokens": "min_tokens", "random_seed": "seed"}

# The names of the table in `enginebay.text.tools.formats`, which is not needed to read a config (a test compares them).
TOOL_FORMATS = (AUTO, "hermes", "llama3", "mistral", "qwen", "json")

# What may send a request to the next engine of a model's `fallback`.
TRIGGERS = ("unavailable", "architecture", "load", "queue", "context", "capability")

MODEL: dict[str, Setting] = {
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
    "sleep": Setting(SLEEP_TYPE, "how it is put to sleep; unset: as fleet.sleep", choices=SLEEP),
    "fallback": Setting("list|str", "engines to try in turn when its own cannot answer", default=[]),
    "fallback_on": Setting("list|str", "what makes a request fall back", default=list(TRIGGERS)),
    "may_leave_host": Setting(
        "bool", "its prompts may be sent to another host; a remote engine needs it", default=False
    ),
    "smaller_on_out_of_memory": Setting(
        "bool", "when memory does not suffice to load it, try once with smaller settings", default=False
    ),
}

TRUST = "trust_remote_code"


def model_value(name: str, value: Any) -> Any:
    """The value as `ModelConfig` holds it, engines as they were written. Raises `Misfit`."""
    if name == "sleep":
        return sleep_value(value)
    if name == "fallback":
        return listed(value)
    if name == "fallback_on" and value is not None:
        return tuple(dict.fromkeys(_trigger(item) for item in listed(value)))
    return value


def _trigger(item: Any) -> str:
    if item in TRIGGERS:
        return str(item)
    near = get_close_matches(str(item), TRIGGERS, n=1)
    raise Misfit(
        f"has {str(item)[:60]!r}, " + (f"did you mean {near[0]}?" if near else f"known: {', '.join(TRIGGERS)}")
    )


def _sampling_type(annotation: str) -> str:
    known = {"tuple[str, ...]": "list|str", "tuple[int, ...]": "list|int", "Mapping[int, float]": "map"}
    return known.get(annotation, annotation.split(" | ")[0])


def _sampling_setting(name: str, annotation: str) -> Setting:
    low, high = RANGES.get(name, (None, None))
    return Setting(_sampling_type(annotation), "default of this request parameter", minimum=low, maximum=high)


SAMPLING: dict[str, Setting] = {
    f.name: _sampling_setting(f.name, str(f.type)) for f in fields(Sampling) if f.name != "guided"
}


def sampling_value(name: str, value: Any) -> Any:
    """The value as `Sampling` holds it. Raises `Misfit`."""
    if name == "stop":
        return _items(value, str, "text")
    if name == "stop_token_ids":
        return _items(value, int, "token ids")
    if name == "logit_bias" and value is not None:
        try:
            return {int(token): float(bias) for token, bias in value.items()}
        except (TypeError, ValueError):
            raise Misfit("maps token ids to numbers") from None
    return value


def _items(value: Any, kind: type, what: str) -> Any:
    if value is None:
        return None
    items = tuple(value) if isinstance(value, list) else (value,)
    if not all(isinstance(item, kind) and not isinstance(item, bool) for item in items):
        raise Misfit(f"takes a list of {what}")
    return items


def _universal(specs: Mapping[str, EngineSpec]) -> dict[str, list[Setting]]:
    """What engines declare for the settings they share; one that has no use for it has no say in its values."""
    declared: dict[str, list[Setting]] = {}
    for spec in specs.values():
        for name, setting in spec.settings.items():
            if name.split(".")[0] in UNIVERSAL:
                declared.setdefault(name, []).append(setting)
    applied = {name: [one for one in found if not _refused(one)] for name, found in declared.items()}
    return {name: applied[name] or found for name, found in declared.items()}


def _refused(setting: Setting) -> bool:
    return setting.capability.support is Support.REFUSES


class Vocabulary:
    """Every key a config may hold, with the engines of this host."""

    def __init__(self, specs: Mapping[str, EngineSpec]) -> None:
        self.specs = specs
        self.kinds = {name: kind for kind, spec in specs.items() for name in (kind, *spec.aliases)}
        self.universal = _universal(specs)

    def kind(self, name: str) -> str | None:
        return self.kinds.get(name)

    def known_kind(self, name: Any, entry: Entry, problems: Problems, *others: str) -> str | None:
        """The kind behind an engine's name or alias; reported when there is none. `others` may stand there too."""
        kind = self.kinds.get(name) if isinstance(name, str) else None
        if kind is None:
            near = get_close_matches(str(name), [*others, *self.kinds], n=1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join([*others, *self.specs])}"
            problems.add(entry, f"there is no engine called {name!r}; {hint}")
        return kind

    def known_kinds(self, entry: Entry, problems: Problems) -> Entry:
        """A list of engines as kinds, each once; whatever else is in it is reported and left out."""
        found: dict[str, None] = {}
        for name in entry.value or ():
            kind = self.known_kind(name, entry, problems)
            if kind in found:
                problems.add(entry, f"names {kind} twice")
            elif kind is not None:
                found[kind] = None
        return entry if entry.value is None else replace(entry, value=tuple(found))

    def sections(self) -> list[str]:
        """What keys begin with that are the configuration's own, or an engine's by its full name."""
        return [
            *ROOT, *ROOT_ALIASES, "models", *SECTIONS, "inference", "sampling", "decoder", *TO_SAMPLING, *self.kinds
        ]  # fmt: skip

    def top_level(self) -> list[str]:
        return [*self.sections(), *UNIVERSAL, *dict.fromkeys(name.split(".")[0] for name in EXPERIMENT)]

    def places(self) -> list[str]:
        """Every known key with its full dotted place."""
        found = [*self.top_level(), *EXPERIMENT, *self.universal]
        found += [f"sampling.{name}" for name in SAMPLING]
        found += [f"{section.name}.{name}" for section in SECTIONS.values() for name in section.settings]
        for kind, spec in self.specs.items():
            found += [f"{kind}.{name}" for name in (*spec.settings, *spec.retired)]
        return list(dict.fromkeys(found))

    def unknown(self, problems: Problems, entry: Entry, siblings: Iterable[str]) -> None:
        """Report a key nobody knows, with the nearest one that somebody does."""
        parent, _, name = entry.place.rpartition(".")
        here = list(dict.fromkeys(siblings))
        near = get_close_matches(name, here, n=1, cutoff=0.7)
        if near:
            problems.add(entry, f"unknown key; did you mean {f'{parent}.' if parent else ''}{near[0]}?")
            return
        elsewhere = self._elsewhere(name)
        if elsewhere == entry.place:
            problems.add(entry, "a key of the configuration, and no setting of this engine")
            return
        if elsewhere:
            problems.add(entry, f"unknown key here; did you mean {elsewhere}?")
            return
        listed = f"; known here: {', '.join(sorted(here))}" if len(here) <= 12 else ""  # the error's hint says where
        problems.add(entry, f"unknown key{listed}")

    def _elsewhere(self, name: str) -> str | None:
        places = self.places()
        exact = [place for place in places if place.rpartition(".")[2] == name]
        if exact:
            return " or ".join(exact[:2])
        near = get_close_matches(name, [place.rpartition(".")[2] for place in places], n=1, cutoff=0.8)
        return self._elsewhere(near[0]) if near else None


def checked(setting: Setting, entry: Entry, problems: Problems) -> Entry | None:
    """The entry with its value as the setting takes it; None, and a problem, when it does not fit."""
    try:
        return Entry(fit(setting, entry), entry.origin, entry.place, entry.raw)
    except Misfit as misfit:
        problems.add(entry, str(misfit))
        return None


def checked_sampling(name: str, entry: Entry, problems: Problems) -> Entry | None:
    """The entry as a default of a request parameter; None, and a problem, when it does not fit."""
    return _converted(name, SAMPLING[name], sampling_value, entry, problems)


def checked_in(section: DeclaredSection[Any], name: str, entry: Entry, problems: Problems) -> Entry | None:
    """The entry as a key of a declared section; None, and a problem, when it does not fit."""
    return _converted(name, section.settings[name], section.convert, entry, problems)


def checked_model(name: str, entry: Entry, problems: Problems) -> Entry | None:
    """The entry as a key of a model; None, and a problem, when it does not fit."""
    return _converted(name, MODEL[name], model_value, entry, problems)


def _converted(
    name: str, setting: Setting, convert: Callable[[str, Any], Any], entry: Entry, problems: Problems
) -> Entry | None:
    found = checked(setting, entry, problems)
    if found is None:
        return None
    try:
        return replace(found, value=convert(name, found.value))
    except Misfit as misfit:
        problems.add(entry, str(misfit))
        return None
