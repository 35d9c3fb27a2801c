"""A JSON schema of the config file, made from the tables that check it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from enginebay.config.engine_block import gone
from enginebay.config.experiment import EXPERIMENT, SWEEP
from enginebay.config.fleet import FLEET
from enginebay.config.keys import (
    MODEL,
    ROOT,
    ROOT_ALIASES,
    SAMPLING,
    SECTIONS,
    TO_SAMPLING,
    TRIGGERS,
    TRUST,
    Vocabulary,
)
from enginebay.config.server import SERVER
from enginebay.contract import EngineSpec, Setting, Support

TYPES = {"int": "integer", "float": "number", "bool": "boolean", "str": "string", "map": "object", "list": "array"}

Schema = dict[str, Any]


def json_schema(specs: Mapping[str, EngineSpec]) -> Schema:
    words = Vocabulary(specs)
    top = _top_level(words)
    inner = {"$ref": "#/$defs/inference"}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Enginebay configuration",
        "type": "object",
        "additionalProperties": False,
        "properties": {**top, "inference": inner},
        "$defs": {
            "inference": {**_object(top), "description": "The same keys as at the top level"},
            "sampling": _nested(SAMPLING),
            "server": _nested(SERVER.settings),
            "fleet": _nested(FLEET.settings, {"standby": _list_of(words.kinds, FLEET.settings["standby"])}),
            "model": _model(words),
            **{f"engine_{kind}": _engine(spec) for kind, spec in specs.items()},
        },
    }


def _top_level(words: Vocabulary) -> dict[str, Schema]:
    plain = {name: _engine_name(words) if name == "engine" else _setting(one) for name, one in ROOT.items()}
    aliases = {alias: plain[name] for alias, name in ROOT_ALIASES.items()}
    moved = {name: _setting(SAMPLING[to]) for name, to in TO_SAMPLING.items()}
    sampling: dict[str, Schema] = {name: {"$ref": "#/$defs/sampling"} for name in ("sampling", "decoder")}
    models: Schema = {"type": ["object", "null"], "additionalProperties": {"$ref": "#/$defs/model"}}
    # engines may differ in what they take at the top level: any of their values is allowed here
    shared = _nested({name: _widest(declared) for name, declared in words.universal.items()})["properties"]
    experiment = _nested(EXPERIMENT, _experiment_lists(words))["properties"]
    named: dict[str, Schema] = {"models": models, **{name: {"$ref": f"#/$defs/{name}"} for name in SECTIONS}}
    return {**plain, **aliases, **moved, **sampling, **named, **shared, **experiment, **_blocks(words)}


def _experiment_lists(words: Vocabulary) -> dict[str, Schema]:
    """A study's engines, and the grids of its sweep, which name keys of this schema with values to try."""
    sweep = {**_setting(EXPERIMENT[SWEEP]), "items": {"type": "object"}}
    return {"engines": _list_of(words.kinds, EXPERIMENT["engines"]), SWEEP: sweep}


def _widest(declared: list[Setting]) -> Setting:
    """One declaration that allows what any of the engines allows."""
    types = dict.fromkeys(part for one in declared for part in one.type.split("|"))
    lows, highs = [one.minimum for one in declared], [one.maximum for one in declared]
    choices = dict.fromkeys(choice for one in declared for choice in one.choices)
    return Setting(
        "|".join(types),
        declared[0].help,
        minimum=None if None in lows else min(low for low in lows if low is not None),
        maximum=None if None in highs else max(high for high in highs if high is not None),
        choices=tuple(choices) if all(one.choices for one in declared) else (),
    )


def _blocks(words: Vocabulary) -> dict[str, Schema]:
    return {name: {"$ref": f"#/$defs/engine_{kind}"} for name, kind in words.kinds.items()}


def _engine_name(words: Vocabulary) -> Schema:
    return {"enum": ["auto", *words.kinds, None], "default": "auto", "description": ROOT["engine"].help}


def _list_of(names: Iterable[str], setting: Setting) -> Schema:
    """A list of these names; text with commas in it is left to the loader."""
    return {**_setting(setting), "items": {"enum": [*names]}}


def _model(words: Vocabulary) -> Schema:
    plain = {name: _setting(one) for name, one in MODEL.items()}
    plain["engine"] = _engine_name(words)
    plain["fallback"] = _list_of(words.kinds, MODEL["fallback"])
    plain["fallback_on"] = _list_of(TRIGGERS, MODEL["fallback_on"])
    loras: Schema = {
        "type": ["object", "null"],
        "additionalProperties": {"type": "string"},
        "description": "Adapter names and their paths",
    }
    sampling: Schema = {"$ref": "#/$defs/sampling"}
    return _object({**plain, "backend": plain["engine"], "sampling": sampling, "loras": loras, **_blocks(words)})


def _engine(spec: EngineSpec) -> Schema:
    retired: dict[str, Schema] = {
        name: {"deprecated": True, "description": f"{gone(spec.kind, one).capitalize()}; instead: {one.instead}"}
        for name, one in spec.retired.items()
    }
    declared = {**SAMPLING, TRUST: MODEL[TRUST], **spec.settings}
    return {**_nested(declared, retired), "description": spec.summary}


def _nested(settings: Mapping[str, Setting], further: Mapping[str, Schema] | None = None) -> Schema:
    """Dotted names as objects within objects."""
    root = _object({})
    leaves = {**{name: _setting(one) for name, one in settings.items()}, **(further or {})}
    for dotted, leaf in leaves.items():
        *sections, name = dotted.split(".")
        current = root
        for part in sections:
            current = current["properties"].setdefault(part, _object({}))
        current["properties"][name] = leaf
    return root


def _object(properties: dict[str, Schema]) -> Schema:
    return {"type": ["object", "null"], "additionalProperties": False, "properties": properties}


def _setting(setting: Setting) -> Schema:
    schema: Schema = {"description": setting.help}
    if setting.choices:
        schema["enum"] = [*setting.choices, None]
    else:
        schema["type"] = [*(TYPES.get(part, part) for part in setting.type.split("|")), "null"]
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
