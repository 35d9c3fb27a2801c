"""The keys that belong to no single engine, and lookup of all keys."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from typing import Any

from enginebay.config.entries.config_entry import ConfigEntry, ProblemCollector, find_untrusted_file
from enginebay.config.entries.value_coercion import InvalidValue, coerce_value, get_unit, parse_unit, split_list
from enginebay.config.sections.declared_section import DeclaredSection
from enginebay.config.sections.experiment_section import EXPERIMENT_KEYS
from enginebay.config.sections.fleet_section import (
    FLEET_SECTION,
    IDLE_ALIASES,
    SLEEP_CHOICES,
    SLEEP_TYPE,
    convert_idle_value,
    convert_sleep_value,
)
from enginebay.config.sections.replica_policy import parse_replicas
from enginebay.config.sections.server_section import SERVER_SECTION
from enginebay.contract import RANGES, EngineSpec, Sampling, Setting, Support
from enginebay.util.child_processes import WITHHELD_VARIABLES
from enginebay.util.text_format import find_nearest

AUTO = "auto"
MIN_GPU_FRACTION = 0.01
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

ROOT_KEYS: dict[str, Setting] = {
    "engine": Setting("str", "default engine of models, or auto", default=AUTO),
    "model": Setting("str", "model to run by default"),
    "offline": Setting("bool", "never use the network", default=False),
}

ROOT_ALIASES = {"backend": "engine", "model_name": "model"}

SECTIONS: dict[str, DeclaredSection[Any]] = {section.name: section for section in (SERVER_SECTION, FLEET_SECTION)}

# Settings with the same meaning on every engine, allowed at the top level. Each engine declares them in its spec.
UNIVERSAL_KEYS = ("fp_precision", "quantization", "batching", "sharding")

# Experiment keys that are aliases of request parameters.
SAMPLING_ALIASES = {"max_output_tokens": "max_tokens", "min_output_tokens": "min_tokens", "random_seed": "seed"}

# The names in `enginebay.text.tool_calls.format_registry`, copied to avoid the import. A test compares them.
TOOL_FORMATS = (AUTO, "hermes", "llama3", "mistral", "qwen", "json")
REASONING_FORMATS = (AUTO, "none", "think", "mistral", "harmony", "granite", "cohere", "gemma", "seed")

# Failures that send a request to the next engine of a model's `fallback`.
FALLBACK_TRIGGERS = ("unavailable", "architecture", "load", "queue", "context", "capability")

MODEL_KEYS: dict[str, Setting] = {
    "source": Setting("str", "source of its files: hf:org/name@revision, pypi:..., file:PATH", aliases=("model",)),
    "engine": Setting("str", "engine to run it on, or auto", aliases=("backend",)),
    "trust_remote_code": Setting("bool", "run Python code shipped with the model's files", sensitive="runs code"),
    "task": Setting("str", "task of the model", choices=("generate", "embed"), default="generate"),
    "tool_format": Setting(
        "str", "format of its tool calls; auto detects it from the chat template", choices=TOOL_FORMATS, default=AUTO
    ),
    "reasoning_format": Setting(
        "str",
        "format of its thoughts; auto detects it from the chat template, none leaves them in the text",
        choices=REASONING_FORMATS,
        default=AUTO,
    ),
    "pinned": Setting("bool", "never evict it, nor unload it when idle", default=False),
    "load": Setting(
        "str", "when to load it: at server start or on first use", choices=("start", "use"), default="start"
    ),
    "context_length": Setting(
        "int",
        "maximum tokens of prompt and output together, on any engine; unset: the engine decides",
        minimum=1,
        aliases=("n_ctx", "num_ctx", "ctx_size", "max_model_len"),
    ),
    "idle_s": Setting(
        "float",
        "idle time after which it is unloaded, 0: at once, -1: never; unset: fleet.idle_s",
        aliases=IDLE_ALIASES,
    ),
    "memory_bytes": Setting("int", "RAM it needs; unset: estimated, then measured", minimum=1),
    "gpus": Setting(
        "int|float|list",
        "GPUs of each replica: whole ones (2), a part of one (0.5), or exactly these ([0, 1]); unset: what its settings take",
    ),
    "sleep": Setting(SLEEP_TYPE, "sleep mode; unset: fleet.sleep", choices=SLEEP_CHOICES),
    "replicas": Setting("int|map", "number of replicas, or {min, max, target_running, idle_s} to scale with the load"),
    "fallback": Setting("list|str", "engines to try in order when its own fails", default=[]),
    "fallback_on": Setting("list|str", "failures that make a request fall back", default=list(FALLBACK_TRIGGERS)),
    "resume": Setting("bool", "resume a response on another worker if its worker dies; unset: server.resume"),
    "may_leave_host": Setting(
        "bool",
        "allow sending its prompts to another host; required by remote engines",
        default=False,
        sensitive="sends prompts to another host",
    ),
    "env": Setting(
        "list|map|str",
        "environment variables of its worker: names to pass on, or NAME: value",
        sensitive="passes variables to a worker",
    ),
    "allow_special_tokens": Setting(
        "bool", "let the text of a control token in a message become that token; a request overrides it", default=False
    ),
    "smaller_on_out_of_memory": Setting(
        "bool", "retry once with reduced settings if loading runs out of memory", default=False
    ),
}

TRUST_KEY = "trust_remote_code"


def convert_model_value(name: str, value: Any) -> Any:
    """Convert a value to its type in `ModelConfig`; engine names stay as written. Raises `InvalidValue`."""
    if name == "sleep":
        return convert_sleep_value(value)
    if name == "idle_s":
        return convert_idle_value(value)
    if name == "fallback":
        return split_list(value)
    if name == "env" and value is not None:
        return _parse_env(value)
    if name == "replicas" and value is not None:
        parse_replicas(value)  # it stays as written, for `bay config show`
    if name == "gpus" and value is not None:
        return _parse_gpus(value)
    if name == "fallback_on" and value is not None:
        return tuple(dict.fromkeys(_parse_trigger(item) for item in split_list(value)))
    return value


def _parse_gpus(value: Any) -> int | float | tuple[int, ...]:
    """Return a number of whole GPUs, a fraction of one, or the indexes of some."""
    if isinstance(value, list):
        if not value or not all(isinstance(item, int) and not isinstance(item, bool) and item >= 0 for item in value):
            raise InvalidValue(f"expected a list of GPU indexes, such as [0, 1], got {value}")
        if len(set(value)) < len(value):
            raise InvalidValue(f"lists a GPU twice: {value}")
        return tuple(value)
    if value >= 1 and value == int(value):
        return int(value)
    if MIN_GPU_FRACTION <= value < 1:
        return float(value)
    raise InvalidValue(
        f"expected whole GPUs (1, 2, ...), a fraction of one ({MIN_GPU_FRACTION:g} to 0.99) or a list of GPUs, got {value:g}"
    )


def _parse_env(value: Any) -> dict[str, str | None]:
    """Return the variables by name. None: passed on from the environment of `bay`."""
    pairs = value.items() if isinstance(value, Mapping) else ((name, None) for name in split_list(value))
    variables: dict[str, str | None] = {}
    for name, text in pairs:
        if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
            raise InvalidValue(f"expected names of environment variables, got {str(name)[:60]!r}")
        if name in WITHHELD_VARIABLES:
            raise InvalidValue(f"{name} cannot be set: Enginebay controls it")
        if isinstance(text, bool) or not isinstance(text, str | int | float | None):
            raise InvalidValue(f"expected text for {name}; quote it")
        variables[name] = None if text is None else str(text)
    return variables


def _parse_trigger(item: Any) -> str:
    if item in FALLBACK_TRIGGERS:
        return str(item)
    near = find_nearest(str(item), FALLBACK_TRIGGERS)
    raise InvalidValue(
        f"unknown item {str(item)[:60]!r}; "
        + (f"did you mean {near[0]}?" if near else f"available: {', '.join(FALLBACK_TRIGGERS)}")
    )


# As Ollama, llama.cpp and transformers spell them.
_SAMPLING_SPELLINGS = {
    "max_tokens": ("num_predict", "n_predict", "max_new_tokens"),
    "repetition_penalty": ("repeat_penalty",),
}


def _to_setting_type(annotation: str) -> str:
    known = {"tuple[str, ...]": "list|str", "tuple[int, ...]": "list|int", "Mapping[int, float]": "map"}
    return known.get(annotation, annotation.split(" | ")[0])


def _build_sampling_setting(name: str, annotation: str) -> Setting:
    low, high = RANGES.get(name, (None, None))
    aliases = _SAMPLING_SPELLINGS.get(name, ())
    return Setting(
        _to_setting_type(annotation), "default of this request parameter", minimum=low, maximum=high, aliases=aliases
    )


SAMPLING_KEYS: dict[str, Setting] = {
    f.name: _build_sampling_setting(f.name, str(f.type)) for f in fields(Sampling) if f.name != "guided"
}


def convert_sampling_value(name: str, value: Any) -> Any:
    """Convert a value to its type in `Sampling`. Raises `InvalidValue`."""
    if name == "stop":
        return _parse_items(value, str, "text")
    if name == "stop_token_ids":
        return _parse_items(value, int, "token ids")
    if name == "logit_bias" and value is not None:
        try:
            return {int(token): float(bias) for token, bias in value.items()}
        except (TypeError, ValueError):
            raise InvalidValue("expected a mapping of token ids to numbers") from None
    return value


def _parse_items(value: Any, kind: type, noun: str) -> Any:
    if value is None:
        return None
    items = tuple(value) if isinstance(value, list) else (value,)
    if not all(isinstance(item, kind) and not isinstance(item, bool) for item in items):
        raise InvalidValue(f"expected a list of {noun}")
    return items


# Keys of other tools that have no counterpart of one name.
_FOREIGN_KEYS = {
    "cmd": "remove cmd: bay starts the engine; set source and engine, and engine settings under the engine's name, "
    "such as llamacpp: {...}",
    "from": "set source: hf:ORG/NAME, a path, or a name of `bay models list`",
    "parameters": "set request defaults under sampling",
}


def _collect_universal_settings(specs: Mapping[str, EngineSpec]) -> dict[str, list[Setting]]:
    """Collect the declarations of shared settings. Engines that refuse a setting do not constrain its values."""
    declared: dict[str, list[Setting]] = {}
    for spec in specs.values():
        for name, setting in spec.settings.items():
            if name.split(".")[0] in UNIVERSAL_KEYS:
                declared.setdefault(name, []).append(setting)
    supported = {
        name: [setting for setting in settings if setting.capability.support is not Support.REFUSES]
        for name, settings in declared.items()
    }
    return {name: supported[name] or settings for name, settings in declared.items()}


class ConfigKeys:
    """All keys of a config, including those of this host's engines."""

    def __init__(self, specs: Mapping[str, EngineSpec]) -> None:
        self.specs = specs
        self.kinds_by_name = {name: kind for kind, spec in specs.items() for name in (kind, *spec.aliases)}
        self.universal = _collect_universal_settings(specs)

    def resolve_kind(self, name: str) -> str | None:
        return self.kinds_by_name.get(name)

    def require_kind(self, name: Any, entry: ConfigEntry, problems: ProblemCollector, *others: str) -> str | None:
        """Return the kind of an engine name or alias; report an unknown one. `others` are further valid names."""
        kind = self.kinds_by_name.get(name) if isinstance(name, str) else None
        if kind is None:
            near = find_nearest(str(name), [*others, *self.kinds_by_name])
            hint = f"did you mean {near[0]}?" if near else f"available: {', '.join([*others, *self.specs])}"
            problems.add(entry, f"unknown engine {name!r}; {hint}")
        return kind

    def require_kinds(self, entry: ConfigEntry, problems: ProblemCollector) -> ConfigEntry:
        """Return a list of engines as unique kinds. Reports and drops everything else."""
        kinds: dict[str, None] = {}
        for name in entry.value or ():
            kind = self.require_kind(name, entry, problems)
            if kind in kinds:
                problems.add(entry, f"lists {kind} twice")
            elif kind is not None:
                kinds[kind] = None
        return entry if entry.value is None else replace(entry, value=tuple(kinds))

    def fill_tuned_values(self, sweep: Any, path: str = "") -> Any:
        """Return the sweep with each `auto` of an engine setting replaced by the values that its engine suggests."""
        if isinstance(sweep, Mapping):
            return {key: self.fill_tuned_values(value, f"{path}.{key}".lstrip(".")) for key, value in sweep.items()}
        if isinstance(sweep, list) and not path:
            return [self.fill_tuned_values(grid) for grid in sweep]
        section, _, name = path.partition(".")
        spec = self.specs.get(self.resolve_kind(section) or "")
        settings = spec.settings if spec is not None else {}
        suggested = next((s.tune for key, s in settings.items() if name in (key, *s.aliases)), ())
        return list(suggested) if sweep == AUTO and suggested else sweep

    def list_section_names(self) -> list[str]:
        """List the first parts of configuration keys and of fully qualified engine settings."""
        return [
            *ROOT_KEYS, *ROOT_ALIASES, "models", *SECTIONS, "inference", "sampling", "decoder", *SAMPLING_ALIASES, *self.kinds_by_name
        ]  # fmt: skip

    def list_top_level_keys(self) -> list[str]:
        heads = dict.fromkeys(name.split(".")[0] for name in EXPERIMENT_KEYS)
        return [*self.list_section_names(), *UNIVERSAL_KEYS, *heads]

    def list_all_keys(self) -> list[str]:
        """List every known key by its full dotted name."""
        keys = [*self.list_top_level_keys(), *EXPERIMENT_KEYS, *self.universal]
        keys += [f"sampling.{name}" for name in SAMPLING_KEYS]
        keys += [f"{section.name}.{name}" for section in SECTIONS.values() for name in section.settings]
        for kind, spec in self.specs.items():
            aliases = (alias for setting in spec.settings.values() for alias in setting.aliases)
            keys += [f"{kind}.{name}" for name in (*spec.settings, *aliases, *spec.retired)]
        return list(dict.fromkeys(keys))

    def report_unknown_key(self, problems: ProblemCollector, entry: ConfigEntry, siblings: Iterable[str]) -> None:
        """Report an unknown key with the closest known one."""
        parent, _, name = entry.key_path.rpartition(".")
        if name in _FOREIGN_KEYS:
            problems.add(entry, f"unknown key; {_FOREIGN_KEYS[name]}")
            return
        known = list(dict.fromkeys(siblings))
        near = find_nearest(name, known)
        if near:
            problems.add(entry, f"unknown key; did you mean {f'{parent}.' if parent else ''}{near[0]}?")
            return
        elsewhere = self._find_similar_key(name)
        if elsewhere == entry.key_path:
            problems.add(entry, "is a configuration key, not a setting of this engine")
            return
        if elsewhere:
            problems.add(entry, f"unknown key here; did you mean {elsewhere}?")
            return
        listed = f"; known here: {', '.join(sorted(known))}" if len(known) <= 12 else ""  # the hint covers longer lists
        problems.add(entry, f"unknown key{listed}")

    def _find_similar_key(self, name: str) -> str | None:
        keys = self.list_all_keys()
        exact = [key for key in keys if key.rpartition(".")[2] == name]
        if exact:
            return " or ".join(exact[:2])
        near = find_nearest(name, [key.rpartition(".")[2] for key in keys])
        return self._find_similar_key(near[0]) if near else None


def check_entry(setting: Setting, entry: ConfigEntry, problems: ProblemCollector, name: str = "") -> ConfigEntry | None:
    """Return the entry with its coerced value; report a problem and return None if it is invalid or not allowed.

    A `name` that ends with a unit allows values with units: `10m`, `4GiB`.
    """
    try:
        value = coerce_value(setting, parse_unit(get_unit(name, setting), entry))
    except InvalidValue as error:
        problems.add(entry, str(error))
        return None
    if setting.sensitive and value and (file := find_untrusted_file(entry)):
        reason = f"not allowed in an untrusted ./{file}. Review the file, then run: bay config trust"
        problems.add(entry, f"{setting.sensitive}; {reason}", setting.sensitive)
        return None
    return replace(entry, value=value)


def check_sampling_entry(name: str, entry: ConfigEntry, problems: ProblemCollector) -> ConfigEntry | None:
    """Check a request default; report a problem and return None if it is invalid."""
    return _check_and_convert(name, SAMPLING_KEYS[name], convert_sampling_value, entry, problems)


def check_section_entry(
    section: DeclaredSection[Any], name: str, entry: ConfigEntry, problems: ProblemCollector
) -> ConfigEntry | None:
    """Check a key of a declared section; report a problem and return None if it is invalid."""
    return _check_and_convert(name, section.settings[name], section.convert, entry, problems)


def check_model_entry(name: str, entry: ConfigEntry, problems: ProblemCollector) -> ConfigEntry | None:
    """Check a key of a model; report a problem and return None if it is invalid."""
    return _check_and_convert(name, MODEL_KEYS[name], convert_model_value, entry, problems)


def _check_and_convert(
    name: str, setting: Setting, convert: Callable[[str, Any], Any], entry: ConfigEntry, problems: ProblemCollector
) -> ConfigEntry | None:
    checked = check_entry(setting, entry, problems, name)
    if checked is None:
        return None
    try:
        return replace(checked, value=convert(name, checked.value))
    except InvalidValue as error:
        problems.add(entry, str(error))
        return None
