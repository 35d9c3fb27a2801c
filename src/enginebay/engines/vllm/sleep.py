"""vLLM's sleep mode, through its Python API. Its HTTP routes need a development mode that exposes far more."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from enginebay.errors import EngineFailed, InvalidRequest

_TOLERANCE = 0.01  # embeddings may differ by rounding; token ids must be equal
_RELOADABLE_FORMATS = (None, "auto", "hf", "safetensors")  # their loaders can read the weights again

ComputeFingerprint = Callable[[], Awaitable[Sequence[float]]]


def list_sleep_levels(arguments: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the sleep levels that are safe with these engine arguments.

    After level 2 vLLM reloads only the model's own weights: not those of adapters or a draft model, not dummy weights,
    and not weights offloaded to CPU memory.
    """
    if not arguments.get("enable_sleep_mode"):
        return ()
    uses_draft_model = (arguments.get("speculative_config") or {}).get("method", "a model") != "ngram"
    loses_weights = (
        arguments.get("load_format") not in _RELOADABLE_FORMATS
        or arguments.get("enable_lora")
        or arguments.get("cpu_offload_gb")
        or (arguments.get("speculative_config") and uses_draft_model)
    )
    return (1,) if loses_weights else (1, 2)


class Sleeper:
    """Puts one AsyncLLM to sleep and wakes it. Its coroutines run in the loop's thread, one at a time.

    `compute_fingerprint` is deterministic and depends on every weight.
    """

    def __init__(self, llm: Any, levels: Sequence[int], compute_fingerprint: ComputeFingerprint) -> None:
        self._llm = llm
        self.levels = tuple(levels)
        self._compute_fingerprint = compute_fingerprint
        self._expected_fingerprint: list[float] | None = None
        self.level = 0  # awake

    async def sleep(self, level: int) -> None:
        if level not in self.levels:
            known = ", ".join(map(str, self.levels)) or "none"
            raise InvalidRequest(f"sleep level {level} is not available", f"available levels: {known}", param="level")
        if level == self.level:
            return
        if self.level:
            await self.wake()  # vLLM cannot switch between levels
        if level == 2 and self._expected_fingerprint is None:
            self._expected_fingerprint = list(await self._compute_fingerprint())
        await self._llm.reset_prefix_cache()
        # The default mode aborts running requests. There are none, but an abort may still be in flight.
        mode = {"mode": "wait"} if "mode" in inspect.signature(self._llm.sleep).parameters else {}
        await self._llm.sleep(level=level, **mode)
        self.level = level

    async def wake(self) -> None:
        """Wake the model. Raises `EngineFailed` if its weights changed: the worker must not be used then."""
        if self.level == 2:
            await self._wake_and_reload_weights()
        elif self.level:
            await self._llm.wake_up()
        self.level = 0

    async def _wake_and_reload_weights(self) -> None:
        await self._llm.wake_up(tags=["weights"])
        await self._llm.collective_rpc("reload_weights")
        await self._llm.wake_up(tags=["kv_cache"])
        await self._llm.reset_prefix_cache()
        fingerprint = list(await self._compute_fingerprint())
        if not is_same_fingerprint(self._expected_fingerprint or [], fingerprint):
            raise EngineFailed(
                "vLLM's output changed after sleep level 2: its weights were not fully restored",
                "use sleep level 1 for this model",
            )


def is_same_fingerprint(expected: Sequence[float], actual: Sequence[float]) -> bool:
    return len(expected) == len(actual) and all(abs(a - b) < _TOLERANCE for a, b in zip(expected, actual, strict=True))
