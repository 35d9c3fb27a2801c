"""An engine's declaration of its capabilities, settings and requirements, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any

WEIGHTLESS_FORMATS = frozenset(("fake", "remote"))


class Support(StrEnum):
    HONOURS = "honours"
    TRANSLATES = "translates"
    REFUSES = "refuses"


@dataclass(frozen=True, slots=True)
class Capability:
    """How an engine treats one parameter. `detail`: its translation, or what to use instead."""

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
    """One load parameter of an engine. Names are dotted if the configuration nests: `speculative.method`."""

    type: str  # int, float, bool, str, map, list; "int|str" accepts either
    help: str
    capability: Capability = Capability(Support.HONOURS)
    default: Any = None  # None: the engine decides
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[Any, ...] = ()
    native: str = ""  # the library's name for it, if the probe checks that it exists
    aliases: tuple[str, ...] = ()  # other spellings that a configuration may use, such as the library's own
    tune: tuple[Any, ...] = ()  # values worth comparing; `auto` in a sweep
    sensitive: str = ""  # what it does that only a trusted configuration may: "names a secret", "runs code", ...
    names_variable: bool = False  # the value is the name of an environment variable that the worker gets


@dataclass(frozen=True, slots=True)
class Retired:
    """A name the library no longer accepts: a warning on load, an error with --strict, refused in a request."""

    since: str  # first version without it
    instead: str


class LaunchMode(StrEnum):
    DIRECT = "direct"  # the engine manages its own processes
    ACCELERATE = "accelerate"
    TORCHRUN = "torchrun"


class CudaOwner(StrEnum):
    ENGINE = "engine"  # only the engine may initialize CUDA in its process
    ORCHESTRATOR = "orchestrator"


@dataclass(frozen=True, slots=True)
class Runtime:
    """How to start the engine."""

    launch_mode: LaunchMode = LaunchMode.DIRECT
    cuda: CudaOwner = CudaOwner.ENGINE
    tensor_parallel: bool = False
    pipeline_parallel: bool = False
    own_batching: bool = True
    launch_modes: tuple[LaunchMode, ...] = (LaunchMode.DIRECT,)  # all supported ones


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to build the engine's environment with pip: ordered steps, each a list of pip arguments.

    `{version}` is replaced by the requested version. A recipe applies if its `when` matches this host.
    """

    when: str  # "cpu", "cuda" or "any"
    version: str  # default version
    steps: tuple[tuple[str, ...], ...]
    drop: tuple[str, ...] = ()  # dependencies of the distribution to leave out
    pins: str = ""  # "package:file" with the exact versions that were tested with `version`


class Isolation(StrEnum):
    PROCESS = "process"  # a worker process per replica
    NONE = "none"  # inside the server process; not supported yet


@dataclass(frozen=True, slots=True)
class Preference:
    """How well the engine suits one model format on one kind of device. `auto` takes the highest score."""

    format: str  # of the model as stored
    device: str  # "cpu" or "cuda"
    score: int  # built-in engines use 40 to 90; without a preference it is 0
    reason: str


@dataclass(frozen=True, slots=True)
class Preset:
    """Settings of one engine for one purpose."""

    name: str
    engine: str  # its kind
    purpose: str
    explanation: str
    settings: Mapping[str, Any] = field(default_factory=dict)  # nested, as in the engine's block

    @property
    def config(self) -> dict[str, Any]:
        """The preset as a config file."""
        return {"engine": self.engine, self.engine: dict(self.settings)}


@dataclass(frozen=True, slots=True)
class TrimProfile:
    """What a bundle may leave out on one GPU generation, each with the reason.

    `files` are patterns in the wheel of `distribution`, `packages` are dependencies. `variables` configure the engine
    to work without them.
    """

    name: str
    engine: str  # its kind
    distribution: str
    files: Mapping[str, str] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Patch:
    """A change to the library's internals. Where it does not apply, the library runs unchanged."""

    name: str
    summary: str
    versions: tuple[str, str]  # first and last tested
    setting: str  # the load setting that turns it off


@dataclass(frozen=True, slots=True)
class GpuSettings:
    """Settings that follow from a model's `gpus`, unless they are set."""

    count: tuple[str, ...] = ()  # the first is set to the number of GPUs, unless one of them is set
    memory_fraction: str = ""  # the fraction of each GPU's memory that a load takes
    default_fraction: float = 0.92  # of a whole GPU: the rest is for the driver; half a GPU is half of it


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """Everything known about an engine without importing its library."""

    kind: str
    summary: str
    engine: str  # "package.module:Class", imported only inside the worker
    module: str  # the library's import name; may be empty
    distributions: tuple[str, ...]  # that provide the library; the first installed one gives the version
    formats: tuple[str, ...]  # "gguf", "safetensors"; those in WEIGHTLESS_FORMATS need no model files
    runtime: Runtime
    request: Mapping[str, Capability]
    settings: Mapping[str, Setting] = field(default_factory=dict)
    retired: Mapping[str, Retired] = field(default_factory=dict)
    recipes: tuple[Recipe, ...] = ()
    aliases: tuple[str, ...] = ()  # accepted in configurations only
    byte_tokens: bool = False  # tokens are the bytes of the text: no vocabulary
    renders: bool = False  # gets messages and text unrendered: it has its own chat template and tokenizer
    continues: bool = False  # takes `GenerateRequest.generated`, so that a stream survives the death of its worker
    remote: bool = False  # requests leave this host
    smaller: tuple[str, ...] = ()  # integer settings to halve after an out-of-memory load
    tasks: tuple[str, ...] = ("generate",)
    conversions: Mapping[str, str] = field(default_factory=dict)  # stored format -> the format it is converted to
    preferences: tuple[Preference, ...] = ()
    device_bound: bool = False  # a build runs only on its own device, and the weights must fit there
    memory: str = ""  # "package.module:function", `MemoryFacts` to `MemoryEstimate`; empty: the generic estimate
    presets: tuple[Preset, ...] = ()
    trims: tuple[TrimProfile, ...] = ()
    isolation: Isolation = Isolation.PROCESS
    patches: tuple[Patch, ...] = ()
    env_prefixes: tuple[str, ...] = ()  # of environment variables that its workers get beside the common ones
    gpu_settings: GpuSettings = GpuSettings()

    @property
    def needs_weights(self) -> bool:
        return not WEIGHTLESS_FORMATS.issuperset(self.formats)

    def find_setting(self, name: str) -> str | None:
        """Return the setting with this name or alias; None if there is none."""
        return next((own for own, setting in self.settings.items() if name in (own, *setting.aliases)), None)

    def reads(self, model_format: str) -> bool:
        """Return whether the engine loads this format, directly or converted."""
        return model_format in self.formats or model_format in self.conversions

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> EngineSpec:
        """Parse the output of `to_json`."""
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
            Recipe(
                r["when"], r["version"], tuple(tuple(step) for step in r["steps"]), tuple(r["drop"]), r.get("pins", "")
            )
            for r in known["recipes"]
        )
        known["preferences"] = tuple(Preference(**value) for value in known.get("preferences", ()))
        known["presets"] = tuple(Preset(**value) for value in known.get("presets", ()))
        known["trims"] = tuple(TrimProfile(**value) for value in known.get("trims", ()))
        known["isolation"] = Isolation(known.get("isolation", Isolation.PROCESS))
        for name in ("distributions", "formats", "aliases", "smaller", "env_prefixes"):
            known[name] = tuple(known.get(name, ()))
        known["tasks"] = tuple(known.get("tasks", ("generate",)))
        gpus = known.get("gpu_settings", {})
        known["gpu_settings"] = GpuSettings(**{**gpus, "count": tuple(gpus.get("count", ()))})
        known["patches"] = tuple(
            Patch(**{**patch, "versions": tuple(patch["versions"])}) for patch in known.get("patches", ())
        )
        return cls(**_select_fields(cls, known))


def _select_fields(cls: type[Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """Drop what a newer version of Enginebay has stored."""
    return {item.name: data[item.name] for item in fields(cls) if item.name in data}


def _parse_capability(value: Mapping[str, str]) -> Capability:
    return Capability(Support(value["support"]), value["detail"])


def _parse_setting(value: Mapping[str, Any]) -> Setting:
    known = dict(value)
    known["capability"] = _parse_capability(known["capability"])
    for name in ("choices", "aliases", "tune"):
        known[name] = tuple(known.get(name, ()))
    return Setting(**_select_fields(Setting, known))


@dataclass(frozen=True, slots=True)
class Probe:
    """What the installed library supports, probed inside its own environment and stored with it."""

    version: str
    versions: Mapping[str, str] = field(default_factory=dict)
    settings: tuple[str, ...] | None = None  # native load-parameter names; None: not probed
    request: tuple[str, ...] | None = None  # native request-parameter names
    architectures: tuple[str, ...] | None = None  # supported model architectures; None: any
    devices: tuple[str, ...] = ("cpu",)
    notes: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)  # request parameter -> why this version cannot
    patches: Mapping[str, str] = field(default_factory=dict)  # patch -> why it does not apply; empty: it applies

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Probe:
        known = dict(data)
        for name in ("settings", "request", "architectures"):
            known[name] = None if known.get(name) is None else tuple(known[name])
        for name in ("devices", "notes"):
            known[name] = tuple(known.get(name, ()))
        return cls(**_select_fields(cls, known))
