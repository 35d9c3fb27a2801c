"""What an engine declares about itself, as plain data, so that it can be stored, printed and compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any


class Support(StrEnum):
    HONOURS = "honours"
    TRANSLATES = "translates"
    REFUSES = "refuses"


@dataclass(frozen=True, slots=True)
class Capability:
    """What one engine does with one parameter. `detail`: what it becomes, or what to use instead."""

    support: Support
    detail: str = ""


def honours(detail: str = "") -> Capability:
    return Capability(Support.HONOURS, detail)


def translates(to: str) -> Capability:
    return Capability(Support.TRANSLATES, to)


def refuses(instead: str) -> Capability:
    return Capability(Support.REFUSES, instead)


@dataclass(frozen=True, slots=True)
class Setting:
    """One load parameter of an engine. Names are dotted where the config nests: `speculative.method`."""

    type: str  # int, float, bool, str, map, list; "int|str" takes either
    help: str
    capability: Capability = Capability(Support.HONOURS)
    default: Any = None  # None: the engine decides
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[Any, ...] = ()
    native: str = ""  # the library's own name for it, where the probe checks that it exists


@dataclass(frozen=True, slots=True)
class Retired:
    """A name the library once took. Loads with a warning, is an error under --strict, is refused in a request."""

    since: str  # the version without it
    instead: str


class LaunchMode(StrEnum):
    DIRECT = "direct"  # the engine manages its own processes
    ACCELERATE = "accelerate"
    TORCHRUN = "torchrun"


class CudaOwner(StrEnum):
    ENGINE = "engine"  # nobody else may initialise CUDA in this process
    ORCHESTRATOR = "orchestrator"


@dataclass(frozen=True, slots=True)
class Runtime:
    """What the engine needs from whoever starts it."""

    launch_mode: LaunchMode = LaunchMode.DIRECT
    cuda: CudaOwner = CudaOwner.ENGINE
    tensor_parallel: bool = False
    pipeline_parallel: bool = False
    own_batching: bool = True
    launch_modes: tuple[LaunchMode, ...] = (LaunchMode.DIRECT,)  # all that it can be started with


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to build the engine's environment with pip: steps in order, each a list of pip arguments.

    `{version}` stands for the version asked for. A recipe applies where its `when` matches this host.
    """

    when: str  # "cpu", "cuda" or "any"
    version: str  # the default
    steps: tuple[tuple[str, ...], ...]
    drop: tuple[str, ...] = ()  # dependencies of the distribution that are left out on purpose


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """The light half of an engine: everything that can be known without its library."""

    kind: str
    summary: str
    engine: str  # "package.module:Class", imported only inside the worker
    module: str  # the library's import name; empty when it has none
    distributions: tuple[str, ...]  # names that carry the library; the first one found gives the version
    formats: tuple[str, ...]  # "gguf", "safetensors"
    runtime: Runtime
    request: Mapping[str, Capability]
    settings: Mapping[str, Setting] = field(default_factory=dict)
    retired: Mapping[str, Retired] = field(default_factory=dict)
    recipes: tuple[Recipe, ...] = ()
    aliases: tuple[str, ...] = ()  # accepted in user configs only
    byte_tokens: bool = False  # tokens are the bytes of the text: no vocabulary is needed
    renders: bool = False  # gets messages and texts as they came: chat template and tokenizer are its own
    remote: bool = False  # what it is asked leaves this host
    smaller: tuple[str, ...] = ()  # whole-number settings to halve when memory does not suffice

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> EngineSpec:
        """Rebuild a spec that a probe wrote."""
        known = dict(data)
        run = dict(known["runtime"])
        run["launch_mode"] = LaunchMode(run["launch_mode"])
        run["cuda"] = CudaOwner(run["cuda"])
        run["launch_modes"] = tuple(LaunchMode(mode) for mode in run["launch_modes"])
        known["runtime"] = Runtime(**run)
        known["request"] = {name: _parse_capability(value) for name, value in known["request"].items()}
        known["settings"] = {name: _parse_setting(value) for name, value in known["settings"].items()}
        known["retired"] = {name: Retired(**value) for name, value in known["retired"].items()}
        known["recipes"] = tuple(
            Recipe(r["when"], r["version"], tuple(tuple(step) for step in r["steps"]), tuple(r["drop"]))
            for r in known["recipes"]
        )
        for name in ("distributions", "formats", "aliases", "smaller"):
            known[name] = tuple(known.get(name, ()))
        return cls(**known)


def _parse_capability(value: Mapping[str, str]) -> Capability:
    return Capability(Support(value["support"]), value["detail"])


def _parse_setting(value: Mapping[str, Any]) -> Setting:
    known = dict(value)
    known["capability"] = _parse_capability(known["capability"])
    known["choices"] = tuple(known["choices"])
    return Setting(**known)


@dataclass(frozen=True, slots=True)
class Probe:
    """What the installed library really takes, found out inside its own environment and stored beside it."""

    version: str
    versions: Mapping[str, str] = field(default_factory=dict)
    settings: tuple[str, ...] | None = None  # native load-parameter names; None: not asked
    request: tuple[str, ...] | None = None  # native request-parameter names
    architectures: tuple[str, ...] | None = None  # model architectures it knows; None: any
    devices: tuple[str, ...] = ("cpu",)
    notes: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)  # request parameter -> why not at this version

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Probe:
        known = dict(data)
        for name in ("settings", "request", "architectures"):
            known[name] = None if known.get(name) is None else tuple(known[name])
        for name in ("devices", "notes"):
            known[name] = tuple(known.get(name, ()))
        return cls(**known)
