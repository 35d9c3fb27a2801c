"""Builds the JSON schema of the config file from the key tables. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from enginebay.config.entries.value_coercion import get_unit
from enginebay.config.sections.config_keys import (
    FALLBACK_TRIGGERS,
    MODEL_KEYS,
    ROOT_ALIASES,
    ROOT_KEYS,
    SAMPLING_ALIASES,
    SAMPLING_KEYS,
    SECTIONS,
    TRUST_KEY,
    ConfigKeys,
)
from enginebay.config.sections.engine_block import describe_retirement
from enginebay.config.sections.experiment_section import EXPERIMENT_KEYS, SWEEP_KEY
from enginebay.config.sections.fleet_section import FLEET_SECTION
from enginebay.config.sections.server_section import SERVER_SECTION
from enginebay.contract import EngineSpec, Setting, Support

JSON_TYPES = {"int": "integer", "float": "number", "bool": "boolean", "str": "string", "map": "object", "list": "array"}

Schema = dict[str, Any]


def build_json_schema(specs: Mapping[str, EngineSpec]) -> Schema:
    known_keys = ConfigKeys(specs)
    top = _build_top_level(known_keys)
    inner = {"$ref": "#/$defs/inference"}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Enginebay configuration",
        "type": "object",
        "additionalProperties": False,
        "properties": {**top, "inference": inner},
        "$defs": {
            "inference": {**_build_object(top), "description": "Same keys as at the top level"},
            "sampling": _nest_settings(SAMPLING_KEYS),
            "server": _nest_settings(SERVER_SECTION.settings),
            "fleet": _nest_settings(
                FLEET_SECTION.settings,
                {"standby": _build_list(known_keys.kinds_by_name, FLEET_SECTION.settings["standby"])},
            ),
            "model": _build_model(known_keys),
            **{f"engine_{kind}": _build_engine(spec) for kind, spec in specs.items()},
        },
    }


def _build_top_level(known_keys: ConfigKeys) -> dict[str, Schema]:
    plain = {
        name: _build_engine_enum(known_keys) if name == "engine" else _convert_setting(setting)
        for name, setting in ROOT_KEYS.items()
    }
    aliases = {alias: plain[name] for alias, name in ROOT_ALIASES.items()}
    moved = {name: _convert_setting(SAMPLING_KEYS[to]) for name, to in SAMPLING_ALIASES.items()}
    sampling: dict[str, Schema] = {name: {"$ref": "#/$defs/sampling"} for name in ("sampling", "decoder")}
    one_model: Schema = {
        "anyOf": [{"$ref": "#/$defs/model"}, {"type": "string", "description": MODEL_KEYS["source"].help}]
    }
    models: Schema = {"type": ["object", "null"], "additionalProperties": one_model}
    # engines may accept different values at the top level: allow any of them
    merged = {name: _merge_settings(declared) for name, declared in known_keys.universal.items()}
    shared = _nest_settings(merged)["properties"]
    experiment = _nest_settings(EXPERIMENT_KEYS, _build_experiment_lists(known_keys))["properties"]
    named: dict[str, Schema] = {"models": models, **{name: {"$ref": f"#/$defs/{name}"} for name in SECTIONS}}
    engines = _reference_engine_blocks(known_keys)
    return {**plain, **aliases, **moved, **sampling, **named, **shared, **experiment, **engines}


def _build_experiment_lists(known_keys: ConfigKeys) -> dict[str, Schema]:
    """Build the schemas of `engines` and `sweep`."""
    sweep = {**_convert_setting(EXPERIMENT_KEYS[SWEEP_KEY]), "items": {"type": "object"}}
    return {"engines": _build_list(known_keys.kinds_by_name, EXPERIMENT_KEYS["engines"]), SWEEP_KEY: sweep}


def _merge_settings(declared: list[Setting]) -> Setting:
    """Merge declarations into one that allows what any of the engines allows."""
    types = dict.fromkeys(part for setting in declared for part in setting.type.split("|"))
    lows, highs = [setting.minimum for setting in declared], [setting.maximum for setting in declared]
    choices = dict.fromkeys(choice for setting in declared for choice in setting.choices)
    return Setting(
        "|".join(types),
        declared[0].help,
        minimum=None if None in lows else min(low for low in lows if low is not None),
        maximum=None if None in highs else max(high for high in highs if high is not None),
        choices=tuple(choices) if all(setting.choices for setting in declared) else (),
    )


def _reference_engine_blocks(known_keys: ConfigKeys) -> dict[str, Schema]:
    return {name: {"$ref": f"#/$defs/engine_{kind}"} for name, kind in known_keys.kinds_by_name.items()}


def _build_engine_enum(known_keys: ConfigKeys) -> Schema:
    allowed = ["auto", *known_keys.kinds_by_name, None]
    return {"enum": allowed, "default": "auto", "description": ROOT_KEYS["engine"].help}


def _build_list(names: Iterable[str], setting: Setting) -> Schema:
    """Build a list schema of these names. Comma-separated text is left to the loader."""
    return {**_convert_setting(setting), "items": {"enum": [*names]}}


def _build_model(known_keys: ConfigKeys) -> Schema:
    plain = {name: _convert_setting(setting, name) for name, setting in MODEL_KEYS.items()}
    plain["engine"] = _build_engine_enum(known_keys)
    plain["fallback"] = _build_list(known_keys.kinds_by_name, MODEL_KEYS["fallback"])
    plain["fallback_on"] = _build_list(FALLBACK_TRIGGERS, MODEL_KEYS["fallback_on"])
    loras: Schema = {
        "type": ["object", "null"],
        "additionalProperties": {"type": "string"},
        "description": "Paths of LoRA adapters by name",
    }
    aliases = {alias: plain[name] for name, setting in MODEL_KEYS.items() for alias in setting.aliases}
    named: dict[str, Schema] = {**aliases, "sampling": {"$ref": "#/$defs/sampling"}, "loras": loras}
    return _build_object({**plain, **named, **_reference_engine_blocks(known_keys)})


def _build_engine(spec: EngineSpec) -> Schema:
    retired_keys: dict[str, Schema] = {
        name: {
            "deprecated": True,
            "description": f"{describe_retirement(spec.kind, retired).capitalize()}; instead: {retired.instead}",
        }
        for name, retired in spec.retired.items()
    }
    sampling = {name: replace(setting, aliases=()) for name, setting in SAMPLING_KEYS.items()}
    declared = {**sampling, TRUST_KEY: MODEL_KEYS[TRUST_KEY], **spec.settings}
    return {**_nest_settings(declared, retired_keys), "description": spec.summary}


def _nest_settings(settings: Mapping[str, Setting], further: Mapping[str, Schema] | None = None) -> Schema:
    """Convert dotted names to nested objects. An alias may be the name of one of them, whose main key it then is."""
    root = _build_object({})
    plain = {name: _convert_setting(setting, name) for name, setting in settings.items()}
    aliases = {alias: plain[name] for name, setting in settings.items() for alias in setting.aliases}
    leaves = {**plain, **(further or {}), **aliases}
    for dotted, leaf in leaves.items():
        *sections, name = dotted.split(".")
        current = root
        for part in sections:
            current = current["properties"].setdefault(part, _build_object({}))
        section = current["properties"].get(name)
        current["properties"][name] = leaf if section is None else {"anyOf": [section, leaf]}
    return root


def _build_object(properties: dict[str, Schema]) -> Schema:
    return {"type": ["object", "null"], "additionalProperties": False, "properties": properties}


def _convert_setting(setting: Setting, name: str = "") -> Schema:
    schema: Schema = {"description": setting.help}
    if setting.choices:
        schema["enum"] = [*setting.choices, None]
    else:
        types = setting.type.split("|")
        unit = get_unit(name, setting)
        schema["type"] = [*(JSON_TYPES.get(part, part) for part in (*types, *(["str"] if unit else []))), "null"]
        if unit:
            schema["pattern"] = unit.pattern
    if setting.minimum is not None:
        schema["minimum"] = setting.minimum
    if setting.maximum is not None:
        schema["maximum"] = setting.maximum
    if setting.default is not None:
        schema["default"] = setting.default
    if setting.capability.support is Support.REFUSES:
        schema["deprecated"] = True
        schema["description"] += f". Has no effect: {setting.capability.detail}"
    return schema
