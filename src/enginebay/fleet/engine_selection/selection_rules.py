"""Rules that choose the engine for a model. Pure: facts in, a decision with its reasons out.

vLLM on a GPU, llama.cpp for GGUF on a CPU, transformers as the fallback:

    model         GPU   order of preference
    GGUF          no    llamacpp, transformers (dequantized), vllm (dequantized)
    GGUF          yes   vllm (dequantized), llamacpp, transformers (dequantized)
    safetensors   no    transformers, vllm
    safetensors   yes   vllm, transformers
    any other           the engines that declare the format

The first engine without an objection wins. If all have one, the first that only lacks installation is suggested.
A measurement of `bay choose` for this model on this host overrides the table while that engine version is installed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from enginebay.contract import Probe
from enginebay.errors import EngineMissing, UsageError
from enginebay.util.hardware import HostFacts

FORMATS: Mapping[str, tuple[str, ...]] = {
    "llamacpp": ("gguf",),
    "transformers": ("safetensors",),
    "vllm": ("safetensors",),
}
_PREFERENCE_ORDER: Mapping[tuple[str, bool], tuple[str, ...]] = {
    ("gguf", False): ("llamacpp", "transformers", "vllm"),
    ("gguf", True): ("vllm", "llamacpp", "transformers"),
    ("safetensors", False): ("transformers", "vllm"),
    ("safetensors", True): ("vllm", "transformers"),
}
_DENSE_MEMORY_FRACTION = 0.8  # of GPU memory for weights; the KV cache needs the rest


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Model facts the choice depends on. `dense_bytes`: size of the dequantized weights, if known."""

    format: str
    architecture: str = ""  # as in the model's config.json: LlamaForCausalLM
    name: str = "the model"
    dense_bytes: int | None = None


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
    installed: Mapping[str, Probe | None],
    requested: str | None = None,
    formats: Mapping[str, tuple[str, ...]] = FORMATS,
    measured: MeasuredPreference | None = None,
    notes: tuple[str, ...] = (),
) -> EngineDecision:
    """Return the engine for this model on this host. `requested` is a kind, or "auto" or None for the rules above.

    `notes`: further reasons to report, such as ignored measurements.
    """
    if requested and requested != "auto":
        return _select_by_name(model, installed, requested, formats)
    if measured is not None:
        mismatch = _find_mismatch(measured, model, host, installed.get(measured.kind), formats)
        if not mismatch:
            dense = _needs_dense(measured.kind, model, formats)
            situation = _describe_situation(model, host)
            reasons = (situation, f"{measured.kind}: {measured.summary}", *_build_dense_note(dense))
            return EngineDecision(measured.kind, reasons, dense=dense)
        notes = (*notes, f"ignored the measurement of {measured.date}: {mismatch}")
    order = _rank_engines(model, host, formats)
    if not order:
        raise UsageError(
            f"no engine runs {model.name}: its format is {model.format}",
            "to see what each engine runs: bay engines list",
        )
    return _select_first_fit(order, model, host, installed, formats, notes)


def list_candidates(
    model: ModelFacts,
    host: HostFacts,
    installed: Mapping[str, Probe | None],
    formats: Mapping[str, tuple[str, ...]] = FORMATS,
) -> tuple[list[str], dict[str, str]]:
    """Return the installed engines that can run this model, best first, and the objections to the others."""
    fit: list[str] = []
    objections: dict[str, str] = {}
    others = [kind for kind, known in formats.items() if model.format in known]
    for kind in dict.fromkeys([*_rank_engines(model, host, formats), *others]):
        objection = _find_objection(kind, model, host, installed.get(kind), _needs_dense(kind, model, formats))
        if objection is None:
            fit.append(kind)
        else:
            objections[kind] = objection.text
    return fit, objections


def _rank_engines(model: ModelFacts, host: HostFacts, formats: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    return _PREFERENCE_ORDER.get((model.format, host.cuda)) or tuple(
        kind for kind, known in formats.items() if model.format in known
    )


def _find_mismatch(
    measured: MeasuredPreference,
    model: ModelFacts,
    host: HostFacts,
    probe: Probe | None,
    formats: Mapping[str, tuple[str, ...]],
) -> str:
    """Return why the measurement does not apply; empty if it does."""
    kind = measured.kind
    dense = _needs_dense(kind, model, formats)
    if not dense and model.format not in formats.get(kind, ()):
        return f"{kind} does not read {model.format}"
    objection = _find_objection(kind, model, host, probe, dense)
    if objection is not None:
        return f"{kind}: {objection.text}"
    if probe is not None and probe.version != measured.version:
        return f"it measured {kind} {measured.version}, but {probe.version} is installed"
    return ""


def _select_by_name(
    model: ModelFacts, installed: Mapping[str, Probe | None], requested: str, formats: Mapping[str, tuple[str, ...]]
) -> EngineDecision:
    if installed.get(requested) is None:
        raise EngineMissing(f"the engine {requested} is not installed", _build_install_hint(requested))
    dense = _needs_dense(requested, model, formats)
    if not dense and model.format not in formats.get(requested, (model.format,)):
        known = ", ".join(formats[requested])
        raise UsageError(
            f"{requested} runs {known} models, but {model.name} is {model.format}",
            "omit --engine to let bay choose",
        )
    return EngineDecision(requested, ("requested by name", *_build_dense_note(dense)), dense=dense)


def _select_first_fit(
    order: Iterable[str],
    model: ModelFacts,
    host: HostFacts,
    installed: Mapping[str, Probe | None],
    formats: Mapping[str, tuple[str, ...]],
    notes: tuple[str, ...] = (),
) -> EngineDecision:
    rejected: dict[str, _Objection] = {}
    start = (_describe_situation(model, host), *notes)
    for kind in order:
        dense = _needs_dense(kind, model, formats)
        objection = _find_objection(kind, model, host, installed.get(kind), dense)
        if objection is None:
            reasons = (
                *start,
                *_format_objections(rejected),
                f"{kind}: {_describe_merit(kind, model, host)}",
                *_build_dense_note(dense),
            )
            return EngineDecision(kind, reasons, dense=dense)
        rejected[kind] = objection
    installable = [kind for kind, objection in rejected.items() if objection.installable]
    if not installable:
        raise UsageError(f"no engine runs {model.name} on this host", "; ".join(_format_objections(rejected)))
    kind = installable[0]
    dense = _needs_dense(kind, model, formats)
    del rejected[kind]
    reasons = (
        *start,
        *_format_objections(rejected),
        f"{kind} fits best but is not installed",
        *_build_dense_note(dense),
        _build_install_hint(kind),
    )
    return EngineDecision(kind, reasons, installed=False, dense=dense)


def _find_objection(
    kind: str, model: ModelFacts, host: HostFacts, probe: Probe | None, dense: bool
) -> _Objection | None:
    if dense and host.cuda and kind == "vllm" and _is_too_big(model, host):
        return _Objection("the dequantized weights do not fit on the GPU")
    if probe is None:
        return _Objection("not installed", installable=True)
    if kind == "vllm" and host.cuda and "cuda" not in probe.devices:
        return _Objection(f"the installed {probe.version} is built for the CPU only")
    if kind == "vllm" and not host.cuda and "cpu" not in probe.devices:
        return _Objection(f"the installed {probe.version} needs a GPU")
    known = probe.architectures
    if known is not None and model.architecture and model.architecture not in known:
        return _Objection(f"the installed {probe.version} does not know the architecture {model.architecture}")
    return None


def _is_too_big(model: ModelFacts, host: HostFacts) -> bool:
    available = sum(gpu.memory_bytes for gpu in host.gpus) * _DENSE_MEMORY_FRACTION
    return model.dense_bytes is not None and 0 < available < model.dense_bytes


def _needs_dense(kind: str, model: ModelFacts, formats: Mapping[str, tuple[str, ...]]) -> bool:
    known = formats.get(kind, ())
    return model.format == "gguf" and "gguf" not in known and "safetensors" in known


def _describe_situation(model: ModelFacts, host: HostFacts) -> str:
    gpu = f"{len(host.gpus)} x {host.gpus[0].name}" if host.gpus else "no NVIDIA GPU"
    shape = f" ({model.architecture})" if model.architecture else ""
    return f"{model.name} is {model.format}{shape}; this host has {gpu}"


def _describe_merit(kind: str, model: ModelFacts, host: HostFacts) -> str:
    if kind == "vllm":
        return "installed, and fastest on this GPU" if host.cuda else "installed, and runs on the CPU"
    if kind == "llamacpp":
        return "reads GGUF directly" if host.cuda else "reads GGUF directly, and is best on a CPU"
    if kind == "transformers":
        return "runs any architecture on any device"
    return f"runs {model.format} models"


def _format_objections(rejected: Mapping[str, _Objection]) -> list[str]:
    return [f"not {kind}: {objection.text}" for kind, objection in rejected.items()]


def _build_dense_note(dense: bool) -> tuple[str, ...]:
    return ("it does not read GGUF: the weights are dequantized to safetensors once",) if dense else ()


def _build_install_hint(kind: str) -> str:
    return f"install it with: bay engines install {kind}"
