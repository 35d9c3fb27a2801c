"""Which engine runs a model when nobody says so. Pure: facts in, a decision with its reasons out.

vLLM where there is a GPU, transformers as what always works, and llama.cpp for what it does best:

    model         GPU   preferred first
    GGUF          no    llamacpp, transformers (dequantised), vllm (dequantised)
    GGUF          yes   vllm (dequantised), llamacpp, transformers (dequantised)
    safetensors   no    transformers, vllm
    safetensors   yes   vllm, transformers
    any other           the engines that declare the format

The first that has nothing against it wins. If none has, the first that is merely not installed is named.

What `bay choose` measured for this model on this host goes before the table, as long as its engine is there unchanged.
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
_DENSE_MEMORY_FRACTION = 0.8  # of the GPU's memory that weights may take: the KV cache needs the rest


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What the choice depends on. `dense_bytes`: size of the dequantised weights, where it is known."""

    format: str
    architecture: str = ""  # as in the model's config.json: LlamaForCausalLM
    name: str = "the model"
    dense_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class EngineDecision:
    kind: str
    reasons: tuple[str, ...]
    installed: bool = True
    dense: bool = False  # the engine gets the dequantised version of a GGUF model


@dataclass(frozen=True, slots=True)
class MeasuredPreference:
    """The engine that was measured to be the best for this model on this host."""

    kind: str
    version: str  # that was measured
    summary: str  # what was found, for a person
    date: str = ""


@dataclass(frozen=True, slots=True)
class _Objection:
    text: str
    installable: bool = False  # by installing the engine


def select_engine(
    model: ModelFacts,
    host: HostFacts,
    installed: Mapping[str, Probe | None],
    requested: str | None = None,
    formats: Mapping[str, tuple[str, ...]] = FORMATS,
    measured: MeasuredPreference | None = None,
    notes: tuple[str, ...] = (),
) -> EngineDecision:
    """The engine for this model on this host. `asked` is a kind, or "auto" or None for the rule above.

    `notes`: what else is to be said of the choice, such as measurements that do not count.
    """
    if requested and requested != "auto":
        return _select_by_name(model, installed, requested, formats)
    if measured is not None:
        against = _find_mismatch(measured, model, host, installed.get(measured.kind), formats)
        if not against:
            dense = _needs_dense(measured.kind, model, formats)
            why = (_describe_situation(model, host), f"{measured.kind}: {measured.summary}", *_build_dense_note(dense))
            return EngineDecision(measured.kind, why, dense=dense)
        notes = (*notes, f"the measurement of {measured.date} is not used: {against}")
    order = _rank_engines(model, host, formats)
    if not order:
        raise UsageError(
            f"no engine runs {model.name}: its format is {model.format}", "bay engines list shows what each engine runs"
        )
    return _select_first_fit(order, model, host, installed, formats, notes)


def list_candidates(
    model: ModelFacts,
    host: HostFacts,
    installed: Mapping[str, Probe | None],
    formats: Mapping[str, tuple[str, ...]] = FORMATS,
) -> tuple[list[str], dict[str, str]]:
    """The installed engines that can run this model here, the preferred first; and what is against the others."""
    fit: list[str] = []
    against: dict[str, str] = {}
    others = [kind for kind, known in formats.items() if model.format in known]
    for kind in dict.fromkeys([*_rank_engines(model, host, formats), *others]):
        objection = _find_objection(kind, model, host, installed.get(kind), _needs_dense(kind, model, formats))
        if objection is None:
            fit.append(kind)
        else:
            against[kind] = objection.text
    return fit, against


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
    """Why what was measured cannot be gone by; empty when it can."""
    kind = measured.kind
    dense = _needs_dense(kind, model, formats)
    if not dense and model.format not in formats.get(kind, ()):
        return f"{kind} does not read {model.format}"
    objection = _find_objection(kind, model, host, probe, dense)
    if objection is not None:
        return f"{kind}: {objection.text}"
    if probe is not None and probe.version != measured.version:
        return f"it was made with {kind} {measured.version}, and {probe.version} is installed"
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
            f"{requested} runs {known} models, and {model.name} is {model.format}",
            "leave --engine out to let bay choose",
        )
    return EngineDecision(requested, ("asked for by name", *_build_dense_note(dense)), dense=dense)


def _select_first_fit(
    order: Iterable[str],
    model: ModelFacts,
    host: HostFacts,
    installed: Mapping[str, Probe | None],
    formats: Mapping[str, tuple[str, ...]],
    notes: tuple[str, ...] = (),
) -> EngineDecision:
    passed_over: dict[str, _Objection] = {}
    start = (_describe_situation(model, host), *notes)
    for kind in order:
        dense = _needs_dense(kind, model, formats)
        objection = _find_objection(kind, model, host, installed.get(kind), dense)
        if objection is None:
            why = (
                *start,
                *_format_objections(passed_over),
                f"{kind}: {_describe_merit(kind, model, host)}",
                *_build_dense_note(dense),
            )
            return EngineDecision(kind, why, dense=dense)
        passed_over[kind] = objection
    curable = [kind for kind, objection in passed_over.items() if objection.installable]
    if not curable:
        raise UsageError(f"no engine runs {model.name} on this host", "; ".join(_format_objections(passed_over)))
    kind = curable[0]
    dense = _needs_dense(kind, model, formats)
    del passed_over[kind]
    why = (
        *start,
        *_format_objections(passed_over),
        f"{kind} is the one to have, and not installed",
        *_build_dense_note(dense),
        _build_install_hint(kind),
    )
    return EngineDecision(kind, why, installed=False, dense=dense)


def _find_objection(
    kind: str, model: ModelFacts, host: HostFacts, probe: Probe | None, dense: bool
) -> _Objection | None:
    if dense and host.cuda and kind == "vllm" and _is_too_big(model, host):
        return _Objection("the dequantised weights would not fit the GPU")
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
    room = sum(gpu.memory_bytes for gpu in host.gpus) * _DENSE_MEMORY_FRACTION
    return model.dense_bytes is not None and 0 < room < model.dense_bytes


def _needs_dense(kind: str, model: ModelFacts, formats: Mapping[str, tuple[str, ...]]) -> bool:
    known = formats.get(kind, ())
    return model.format == "gguf" and "gguf" not in known and "safetensors" in known


def _describe_situation(model: ModelFacts, host: HostFacts) -> str:
    gpu = f"{len(host.gpus)} x {host.gpus[0].name}" if host.gpus else "no NVIDIA GPU"
    shape = f" ({model.architecture})" if model.architecture else ""
    return f"{model.name} is {model.format}{shape}; this host has {gpu}"


def _describe_merit(kind: str, model: ModelFacts, host: HostFacts) -> str:
    if kind == "vllm":
        return "installed, and the fastest on this GPU" if host.cuda else "installed, and runs on the CPU"
    if kind == "llamacpp":
        return "reads GGUF as it is" if host.cuda else "reads GGUF as it is, and is the best on a CPU"
    if kind == "transformers":
        return "runs any architecture on any device"
    return f"runs {model.format} models"


def _format_objections(passed_over: Mapping[str, _Objection]) -> list[str]:
    return [f"not {kind}: {objection.text}" for kind, objection in passed_over.items()]


def _build_dense_note(dense: bool) -> tuple[str, ...]:
    return ("it does not read GGUF, so it gets the weights dequantised to safetensors, made once",) if dense else ()


def _build_install_hint(kind: str) -> str:
    return f"install it with: bay engines install {kind}"
