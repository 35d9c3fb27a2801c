"""Rules that choose the engine for a model. Pure: facts in, a decision with its reasons out.

Each engine declares in its spec which formats it reads, which it reads once converted, and its preference for each
format on a CPU or a GPU. The highest score without an objection wins. If all have one, the first that only lacks
installation is suggested. A measurement of `bay choose` for this model on this host overrides the scores while that
engine version is installed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from enginebay.contract import EngineSpec, Preference, Probe
from enginebay.errors import EngineMissing, UsageError
from enginebay.util.hardware import HostFacts

_DENSE_MEMORY_FRACTION = 0.8  # of GPU memory for weights; the KV cache needs the rest


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Model facts the choice depends on. `dense_bytes`: size of the dequantized weights, if known."""

    format: str
    architecture: str = ""  # as in the model's config.json: LlamaForCausalLM
    name: str = "the model"
    dense_bytes: int | None = None
    task: str = "generate"


@dataclass(frozen=True, slots=True)
class EngineDecision:
    kind: str
    reasons: tuple[str, ...]
    installed: bool = True
    dense: bool = False  # the engine gets dequantized weights of a GGUF model


@dataclass(frozen=True, slots=True)
class MeasuredPreference:
    """The engine that measured best for this model on this host."""

    kind: str
    version: str  # measured version
    summary: str  # human-readable result
    date: str = ""


@dataclass(frozen=True, slots=True)
class _Objection:
    text: str
    installable: bool = False  # installing the engine resolves it


def select_engine(
    model: ModelFacts,
    host: HostFacts,
    specs: Mapping[str, EngineSpec],
    installed: Mapping[str, Probe | None],
    requested: str | None = None,
    measured: MeasuredPreference | None = None,
    notes: tuple[str, ...] = (),
) -> EngineDecision:
    """Return the engine for this model on this host. `requested` is a kind, or "auto" or None for the rules above.

    `notes`: further reasons to report, such as ignored measurements.
    """
    if requested and requested != "auto":
        return _select_by_name(model, specs, installed, requested)
    if measured is not None:
        spec = specs.get(measured.kind)
        mismatch = _find_mismatch(measured, model, host, spec, installed.get(measured.kind))
        if spec is not None and not mismatch:
            dense = _needs_dense(spec, model)
            situation = _describe_situation(model, host)
            reasons = (situation, f"{measured.kind}: {measured.summary}", *_build_dense_note(dense))
            return EngineDecision(measured.kind, reasons, dense=dense)
        notes = (*notes, f"ignored the measurement of {measured.date}: {mismatch}")
    order = _rank_engines(model, host, specs)
    if not order:
        raise UsageError(
            f"no engine runs {model.name}: its format is {model.format}",
            "to see what each engine runs: bay engines list",
        )
    return _select_first_fit(order, model, host, installed, notes)


def list_candidates(
    model: ModelFacts, host: HostFacts, specs: Mapping[str, EngineSpec], installed: Mapping[str, Probe | None]
) -> tuple[list[str], dict[str, str]]:
    """Return the installed engines that can run this model, best first, and the objections to the others."""
    fit: list[str] = []
    objections: dict[str, str] = {}
    for spec in _rank_engines(model, host, specs):
        objection = _find_objection(spec, model, host, installed.get(spec.kind))
        if objection is None:
            fit.append(spec.kind)
        else:
            objections[spec.kind] = objection.text
    return fit, objections


def _rank_engines(model: ModelFacts, host: HostFacts, specs: Mapping[str, EngineSpec]) -> list[EngineSpec]:
    """Return the engines that read this format, best first; those that need a conversion last at equal scores."""
    able = [spec for spec in specs.values() if spec.reads(model.format)]
    return sorted(able, key=lambda spec: (-_get_preference(spec, model, host).score, _needs_dense(spec, model)))


def _get_preference(spec: EngineSpec, model: ModelFacts, host: HostFacts) -> Preference:
    for preference in spec.preferences:
        if (preference.format, preference.device) == (model.format, host.device):
            return preference
    return Preference(model.format, host.device, 0, f"runs {model.format} models")


def _find_mismatch(
    measured: MeasuredPreference, model: ModelFacts, host: HostFacts, spec: EngineSpec | None, probe: Probe | None
) -> str:
    """Return why the measurement does not apply; empty if it does."""
    kind = measured.kind
    if spec is None or not spec.reads(model.format):
        return f"{kind} does not read {model.format}"
    objection = _find_objection(spec, model, host, probe)
    if objection is not None:
        return f"{kind}: {objection.text}"
    if probe is not None and probe.version != measured.version:
        return f"it measured {kind} {measured.version}, but {probe.version} is installed"
    return ""


def _select_by_name(
    model: ModelFacts, specs: Mapping[str, EngineSpec], installed: Mapping[str, Probe | None], requested: str
) -> EngineDecision:
    if installed.get(requested) is None:
        raise EngineMissing(f"the engine {requested} is not installed", _build_install_hint(requested))
    spec = specs[requested]
    if not spec.reads(model.format):
        known = ", ".join(spec.formats)
        raise UsageError(
            f"{requested} runs {known} models, but {model.name} is {model.format}",
            "omit --engine to let bay choose",
        )
    dense = _needs_dense(spec, model)
    return EngineDecision(requested, ("requested by name", *_build_dense_note(dense)), dense=dense)


def _select_first_fit(
    order: Sequence[EngineSpec],
    model: ModelFacts,
    host: HostFacts,
    installed: Mapping[str, Probe | None],
    notes: tuple[str, ...] = (),
) -> EngineDecision:
    rejected: dict[str, _Objection] = {}
    start = (_describe_situation(model, host), *notes)
    dense = {spec.kind: _needs_dense(spec, model) for spec in order}
    for spec in order:
        kind = spec.kind
        objection = _find_objection(spec, model, host, installed.get(kind))
        if objection is None:
            merit = f"{kind}: {_get_preference(spec, model, host).reason}"
            reasons = (*start, *_format_objections(rejected), merit, *_build_dense_note(dense[kind]))
            return EngineDecision(kind, reasons, dense=dense[kind])
        rejected[kind] = objection
    installable = [kind for kind, objection in rejected.items() if objection.installable]
    if not installable:
        raise UsageError(f"no engine runs {model.name} on this host", "; ".join(_format_objections(rejected)))
    kind = installable[0]
    del rejected[kind]
    reasons = (
        *start,
        *_format_objections(rejected),
        f"{kind} fits best but is not installed",
        *_build_dense_note(dense[kind]),
        _build_install_hint(kind),
    )
    return EngineDecision(kind, reasons, installed=False, dense=dense[kind])


def _find_objection(spec: EngineSpec, model: ModelFacts, host: HostFacts, probe: Probe | None) -> _Objection | None:
    if model.task not in spec.tasks:
        return _Objection(f"does not support the task {model.task}")
    if spec.device_bound and host.cuda and _needs_dense(spec, model) and _is_too_big(model, host):
        return _Objection("the dequantized weights do not fit on the GPU")
    if probe is None:
        return _Objection("not installed", installable=True)
    if spec.device_bound and host.device not in probe.devices:
        built_for = "needs a GPU" if host.device == "cpu" else "is built for the CPU only"
        return _Objection(f"the installed {probe.version} {built_for}")
    known = probe.architectures
    if known is not None and model.architecture and model.architecture not in known:
        return _Objection(f"the installed {probe.version} does not know the architecture {model.architecture}")
    return None


def _is_too_big(model: ModelFacts, host: HostFacts) -> bool:
    available = sum(gpu.memory_bytes for gpu in host.gpus) * _DENSE_MEMORY_FRACTION
    return model.dense_bytes is not None and 0 < available < model.dense_bytes


def _needs_dense(spec: EngineSpec, model: ModelFacts) -> bool:
    return model.format not in spec.formats and model.format in spec.conversions


def _describe_situation(model: ModelFacts, host: HostFacts) -> str:
    gpu = f"{len(host.gpus)} x {host.gpus[0].name}" if host.gpus else "no NVIDIA GPU"
    shape = f" ({model.architecture})" if model.architecture else ""
    return f"{model.name} is {model.format}{shape}; this host has {gpu}"


def _format_objections(rejected: Mapping[str, _Objection]) -> list[str]:
    return [f"not {kind}: {objection.text}" for kind, objection in rejected.items()]


def _build_dense_note(dense: bool) -> tuple[str, ...]:
    return ("it does not read GGUF: the weights are dequantized to safetensors once",) if dense else ()


def _build_install_hint(kind: str) -> str:
    return f"install it with: bay engines install {kind}"
