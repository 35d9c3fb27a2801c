"""Convert vLLM's exceptions to Enginebay errors. Matches by class name, since not every version has every class."""

from __future__ import annotations

import re

from enginebay.errors import (
    EnginebayError,
    EngineFailed,
    InvalidRequest,
    LoadFailed,
    ModelInvalid,
    OutOfMemory,
    UnknownArchitecture,
    WorkerDied,
)

_CLIENT_ERRORS = {"VLLMValidationError", "VLLMClientError", "VLLMUnprocessableEntityError", "LoRAAdapterNotFoundError"}
_ENGINE_DEAD = "EngineDeadError"
_BUSY = "GracefulHTTPError"  # vLLM's own admission limits, set through `extra`
_MAX_LINE = 160
_CPP_LOCATION = re.compile(r"\[[\d:]+\] \S+\.(?:cc|h):\d+: ")
# Phrases of vLLM's messages about constraints -> parameter.
_CONSTRAINT_PHRASES = {
    "features not supported by xgrammar": "guided_json",
    "transform json schema": "guided_json",
    "transform regex": "guided_regex",
    "transform choices": "guided_choice",
    "Invalid grammar specification": "guided_grammar",
}
_CONSTRAINT_HINT = "use simpler keywords, or another library: extra: {structured_outputs_config: {backend: guidance}} in the settings of the model"
_ALTERNATIVE_HINT = "use engine transformers, or a checkpoint with another quantization"
# Phrases of vLLM's out-of-memory messages -> hint. The first match wins.
_OUT_OF_MEMORY_HINTS: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        ("less than desired", "less than requested memory"),
        "other processes use this GPU's memory: stop them, or lower gpu_memory_utilization",
    ),
    (
        ("no available memory", "available kv cache", "memory for the cache blocks"),
        "lower max_model_len, or raise gpu_memory_utilization (on a CPU: cpu_kvcache_space_gib)",
    ),
    (
        ("out of memory", "outofmemory", "cannot allocate memory"),
        "shrink the model (quantization_method: fp8, max_num_seqs), or spread it (tensor_parallel_size, cpu_offload_gb)",
    ),
)


def is_engine_death(error: BaseException) -> bool:
    return _ENGINE_DEAD in _list_class_names(error)


def to_request_error(error: BaseException) -> EnginebayError:
    """Return the Enginebay error for an exception raised by one request."""
    if isinstance(error, EnginebayError):
        return error
    names = _list_class_names(error)
    if _ENGINE_DEAD in names:
        return WorkerDied("vLLM's engine process ended", "see the worker's log for the cause; the worker restarts")
    if "EngineGenerateError" in names and error.__cause__ is not None:
        return to_request_error(error.__cause__)
    if _BUSY in names:
        return EngineFailed(f"vLLM rejects new requests: {summarize_error(error)}", "try again later")
    if isinstance(error, ValueError) or names & _CLIENT_ERRORS:
        if constraint_error := _find_constraint_error(error):
            return constraint_error
        return InvalidRequest(summarize_error(error), param=_get_parameter(error))
    return EngineFailed(f"vLLM failed on this request: {type(error).__name__}: {summarize_error(error)}")


def _find_constraint_error(error: BaseException) -> InvalidRequest | None:
    text = str(error)
    for phrase, param in _CONSTRAINT_PHRASES.items():
        if phrase in text:
            reason = extract_reason(_CPP_LOCATION.sub("", text))
            return InvalidRequest(f"the guided constraint cannot be compiled: {reason}", _CONSTRAINT_HINT, param=param)
    return None


def to_load_error(
    kind: str, text: str, model: str, version: str, architectures: list[str], known: frozenset[str]
) -> EnginebayError:
    """Return the error for a failed load, from the exception's class name and message. It may come from any process."""
    lowered = f"{kind} {text}".lower()
    unsupported = [name for name in architectures if name not in known]
    if unsupported and ("architecture" in lowered or "model type" in lowered or "model_type" in lowered):
        return UnknownArchitecture(
            f"vLLM {version} does not support the architecture {', '.join(unsupported)}", "use engine transformers"
        )
    if "safetensor" in lowered or "deserializing header" in lowered:
        return ModelInvalid(f"the weight files of {model} are corrupt: {extract_reason(text)}", "pull the model again")
    if "_opnamespace" in lowered:
        return LoadFailed(
            f"vLLM {version} has no kernel for {model} on this machine: {extract_reason(text)}", _ALTERNATIVE_HINT
        )
    if "to be bfloat16 or half" in lowered:  # the 8-bit kernels of processors with AMX
        message = f"vLLM {version} cannot run {model} in float32 on this processor: {extract_reason(text)}"
        return LoadFailed(message, "set dtype: bfloat16")
    for words, hint in _OUT_OF_MEMORY_HINTS:
        if any(word in lowered for word in words):
            return OutOfMemory(f"not enough memory to load {model} on vLLM: {extract_reason(text) or kind}", hint)
    return LoadFailed(f"vLLM {version} could not load {model}: {extract_reason(text) or kind}", "see the worker's log")


def summarize_error(error: BaseException) -> str:
    message = error.args[0] if error.args and isinstance(error.args[0], str) else str(error)
    return extract_reason(message) or type(error).__name__


def extract_reason(text: str) -> str:
    """Return the line that states the problem. Pydantic puts it on the third line."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    if not lines:
        return ""
    chosen = next((line for line in lines if line.startswith("Value error,")), lines[0])
    text = chosen.removeprefix("Value error,").split(" [type=")[0].strip()
    return text if len(text) <= _MAX_LINE else text.split(". ")[0][:400]


def _list_class_names(error: BaseException) -> set[str]:
    return {cls.__name__ for cls in type(error).__mro__}


def _get_parameter(error: BaseException) -> str | None:
    parameter = getattr(error, "parameter", None)
    return parameter if isinstance(parameter, str) else None
