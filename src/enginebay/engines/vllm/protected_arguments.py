"""Engine arguments that `extra` must not set, because they would bypass a check."""

from __future__ import annotations

from collections.abc import Iterable

from enginebay.errors import ConfigError

_USE_MODEL = "set the model to load instead: its files are checked first"
_USE_SAMPLING = "set sampling parameters in the request or under sampling instead"
_USE_SPECULATIVE = "use speculative.method, speculative.model and speculative.num_tokens instead"
_USE_LORAS = "list adapters under the model's loras, and use lora.max_loras and lora.max_rank instead"
_USE_TASK = "set the model's task (generate or embed) instead"
_OWN_TOKENIZER = "remove it: prompts are tokenized with the model's own tokenizer"

# Argument -> hint.
PROTECTED_ARGUMENTS = {
    "model": _USE_MODEL,
    "model_weights": _USE_MODEL,
    "hf_config_path": _USE_MODEL,
    "revision": _USE_MODEL,
    "code_revision": _USE_MODEL,
    "tokenizer": _OWN_TOKENIZER,
    "tokenizer_revision": _OWN_TOKENIZER,
    "skip_tokenizer_init": _OWN_TOKENIZER,
    "trust_remote_code": "set trust_remote_code next to extra, not inside it",
    "load_format": "use the setting load_format instead, which rejects pickle files",
    "hf_overrides": "use rope_scaling and rope_theta instead",
    "speculative_config": _USE_SPECULATIVE,
    "spec_method": _USE_SPECULATIVE,
    "spec_model": _USE_SPECULATIVE,
    "spec_tokens": _USE_SPECULATIVE,
    "enable_lora": _USE_LORAS,
    "max_loras": _USE_LORAS,
    "max_lora_rank": _USE_LORAS,
    "default_mm_loras": _USE_LORAS,
    "runner": _USE_TASK,
    "convert": _USE_TASK,
    "task": _USE_TASK,
    "generation_config": _USE_SAMPLING,
    "override_generation_config": _USE_SAMPLING,
    "logprobs_mode": "remove it: logprobs mean the same on every engine",
}


def reject_protected_arguments(names: Iterable[str]) -> None:
    """Raise `ConfigError` for the first protected name."""
    for name in names:
        if name in PROTECTED_ARGUMENTS:
            raise ConfigError(f"vllm.extra must not set {name}", PROTECTED_ARGUMENTS[name], param=f"extra.{name}")
