"""Inputs and result of an engine's memory estimate, and the generic estimate. Pure.

Pools are "ram", "gpu0", "gpu1", ... An engine counts the GPUs that it uses from 0, whichever those are on the host: an
estimate with "gpu0" and "gpu1" is placed on any two. One without "gpu0" means the GPUs of exactly these numbers. Estimates err on the high side: too high costs an eviction, too low the whole host.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

RAM = "ram"
MIB, GIB = 2**20, 2**30
BARE_WORKER_BYTES = 100 * MIB  # Python, gRPC, no library
CUDA_CONTEXT_BYTES = 500 * MIB  # per GPU: driver and scratch space
_LIBRARY_BYTES = GIB
_DEFAULT_CONTEXT = 8192
_DTYPE_BYTES = {"float32": 4, "float": 4, "float16": 2, "half": 2, "bfloat16": 2}
_QUANTIZED_BYTES = {4: 0.6, 8: 1.1}  # per value: embeddings and scales stay unquantized
_GUESSED_TOKENS_PER_WEIGHTS = 8192  # tokens whose cache equals the weights in size, if the shape is unknown


@dataclass(frozen=True, slots=True)
class MemoryFacts:
    """One load on one host. `layers`, `kv_heads` and `head_dim` are 0 if unknown."""

    kind: str
    weights_bytes: int = 0  # as stored
    float_values: int = 0  # of the weights: stored as floating point, so the precision of the engine applies
    float_bytes: int = 0  # their share of `weights_bytes`
    packed_values: int = 0  # of the weights: several in one stored integer (GPTQ, AWQ)
    packed_bytes: int = 0
    extra_bytes: int = 0  # adapters and draft models
    layers: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    context_length: int | None = None  # the model's maximum
    stored_dtype: str = ""  # as in the model's config.json
    settings: Mapping[str, Any] = field(default_factory=dict)
    gpus: tuple[int, ...] = ()  # bytes of each: of all on the host, or of the configured ones
    gpus_configured: bool = False  # it uses all of `gpus`; else the engine decides how many
    cuda: bool = False  # the engine uses the GPUs
    task: str = "generate"
    memory_bytes: int = 0  # the host's RAM, of which some engines take a share by default; 0: unknown
    bf16: bool = False  # the processor computes in bfloat16

    def get_setting(self, *names: str) -> Any:
        """Return the first of these settings that is set, including those under `extra`."""
        extra = self.settings.get("extra") or {}
        values = (extra.get(name, self.settings.get(name)) for name in names)
        return next((value for value in values if value is not None), None)

    def get_context_length(self, *names: str) -> int:
        """Return the first of these settings that is set, else the model's maximum."""
        return int(self.get_setting(*names) or self.context_length or _DEFAULT_CONTEXT)

    def get_configured_value_bytes(self) -> float | None:
        """Return the bytes of one weight in the configured precision; None: the engine decides."""
        for bits, amount in _QUANTIZED_BYTES.items():
            if self.settings.get(f"quantization.load_in_{bits}bit"):
                return amount
        dtype = self.get_setting("dtype", "torch_dtype", "fp_precision")
        return None if dtype in (None, "", "auto") else _DTYPE_BYTES.get(str(dtype), 4)

    def estimate_weights_bytes(self, value_bytes: float = 0, *, unpack: bool = False) -> int:
        """Estimate the loaded weights with `value_bytes` per floating-point value; 0: as stored.

        `unpack`: packed weights are converted as well.
        """
        total = float(self.weights_bytes + self.extra_bytes)
        if value_bytes:
            total += self.float_values * value_bytes - self.float_bytes
            if unpack:
                total += self.packed_values * value_bytes - self.packed_bytes
        return int(total)

    def estimate_kv_cache_bytes(self, tokens: float, value_bytes: float = 2.0) -> int:
        """Estimate the KV cache of `tokens`, with `value_bytes` per number."""
        values = 2 * self.layers * self.kv_heads * self.head_dim
        guessed = (self.weights_bytes + self.extra_bytes) * max(value_bytes / 2, 1) / _GUESSED_TOKENS_PER_WEIGHTS
        return int(tokens * (values * value_bytes if values else guessed))


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """What a load will use."""

    pools: Mapping[str, int]  # bytes by pool
    weights_bytes: int = 0  # as loaded: what sleep level 1 moves to RAM
    sizes: Mapping[str, int] = field(default_factory=dict)  # values that the engine chooses for unset sizes
    whole_gpus: bool = False  # its ranks wait for each other: no other model may slow one of them down


def estimate_generic_memory(facts: MemoryFacts) -> MemoryEstimate:
    """Estimate an engine that declares no estimate: weights, one full context, and a library."""
    weights = facts.estimate_weights_bytes()
    if not weights:
        return MemoryEstimate({RAM: BARE_WORKER_BYTES})
    context = facts.get_context_length("context_length")
    total = weights + facts.estimate_kv_cache_bytes(context) + _LIBRARY_BYTES
    on_gpu = facts.cuda and bool(facts.gpus)
    pools = {RAM: 2 * _LIBRARY_BYTES, "gpu0": total + CUDA_CONTEXT_BYTES} if on_gpu else {RAM: total}
    return MemoryEstimate(pools, weights, {"context_length": context})
