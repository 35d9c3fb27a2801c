"""Engine arguments that `extra` must not set: each would go round a check that the setting of its own passes."""

from __future__ import annotations

from collections.abc import Iterable

from enginebay.errors import ConfigError

_THE_MODEL = "name the model to load instead: its files are checked first"
_NOT_LEAKED = "give sampling parameters in the request or under sampling instead"
_SPECULATIVE = "use speculative.method, speculative.model and speculative.num_tokens instead"
_LORA = "list adapters under the model's loras, and use lora.max_loras and lora.max_rank instead"
_TASK = "set the model's task (generate or embed) instead"
_TEXT = "leave it out: prompts are made into tokens with the model's own tokenizer"

# Argument -> what to do instead.
GUARDED = {
    "model": _THE_MODEL,
    "model_weights": _THE_MODEL,
    "hf_config_path": _THE_MODEL,
    "revision": _THE_MODEL,
    "code_revision": _THE_MODEL,
    "tokenizer": _TEXT,
    "tokenizer_revision": _TEXT,
    "skip_tokenizer_init": _TEXT,
    "trust_remote_code": "set trust_remote_code beside extra, not in it",
    "load_format": "use the setting load_format instead, which refuses pickle files",
    "hf_overrides": "use rope_scaling and rope_theta instead",
    "speculative_config": _SPECULATIVE,
    "spec_method": _SPECULATIVE,
    "spec_model": _SPECULATIVE,
    "spec_tokens": _SPECULATIVE,
    "enable_lora": _LORA,
    "max_loras": _LORA,
    "max_lora_rank": _LORA,
    "default_mm_loras": _LORA,
    "runner": _TASK,
    "convert": _TASK,
    "task": _TASK,
    "generation_config": _NOT_LEAKED,
    "override_generation_config": _NOT_LEAKED,
    "logprobs_mode": "leave it out: logprobs mean the same on every engine",
}


def refuse_guarded(names: Iterable[str]) -> None:
    """Raise `ConfigError` for the first guarded name."""
    for name in names:
        if name in GUARDED:
            raise ConfigError(f"vllm.extra must not set {name}", GUARDED[name], param=f"extra.{name}")
