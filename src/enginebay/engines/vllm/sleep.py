"""vLLM's sleep mode, over its Python API: its HTTP routes need a development mode that opens far more than these."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from enginebay.errors import EngineFailed, InvalidRequest

_TOLERANCE = 0.01  # token ids must be equal; the numbers of an embedding may differ by rounding
_RELOADABLE_FORMATS = (None, "auto", "hf", "safetensors")  # formats whose loader can read the weights a second time

ComputeFingerprint = Callable[[], Awaitable[Sequence[float]]]


def list_sleep_levels(arguments: Mapping[str, Any]) -> tuple[int, ...]:
    """The levels that are safe with these engine arguments.

    After level 2 vLLM reads the model's own weights again, and nothing else: not those of adapters or of a draft model,
    and none where there are no files or some weights live in main memory.
    """
    if not arguments.get("enable_sleep_mode"):
        return ()
    drafts = (arguments.get("speculative_config") or {}).get("method", "a model") != "ngram"
    lost = (
        arguments.get("load_format") not in _RELOADABLE_FORMATS
        or arguments.get("enable_lora")
        or arguments.get("cpu_offload_gb")
        or (arguments.get("speculative_config") and drafts)
    )
    return (1,) if lost else (1, 2)


class Sleeper:
    """Puts one AsyncLLM to sleep and wakes it. Its coroutines run in the loop's thread, one at a time.

    `sample` computes something that depends on every weight, the same each time.
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
            raise InvalidRequest(f"there is no sleep level {level} here", f"levels: {known}", param="level")
        if level == self.level:
            return
        if self.level:
            await self.wake()  # vLLM does not go from one level to the other
        if level == 2 and self._expected_fingerprint is None:
            self._expected_fingerprint = list(await self._compute_fingerprint())
        await self._llm.reset_prefix_cache()
        # By default it would abort what runs. Nothing does, but an abort may still be on its way.
        mode = {"mode": "wait"} if "mode" in inspect.signature(self._llm.sleep).parameters else {}
        await self._llm.sleep(level=level, **mode)
        self.level = level

    async def wake(self) -> None:
        """Raises `EngineFailed` when the model is not the same afterwards: such a worker must not be used."""
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
        found = list(await self._compute_fingerprint())
        if not is_same_fingerprint(self._expected_fingerprint or [], found):
            raise EngineFailed(
                "vLLM answers differently after sleep level 2: its weights did not come back whole",
                "use sleep level 1 for this model",
            )


def is_same_fingerprint(expected: Sequence[float], found: Sequence[float]) -> bool:
    return len(expected) == len(found) and all(abs(a - b) < _TOLERANCE for a, b in zip(expected, found, strict=True))
