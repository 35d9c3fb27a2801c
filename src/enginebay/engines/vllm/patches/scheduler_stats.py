"""What vLLM's scheduler tells after each step: how full the KV cache is, who waits.

The scheduler lives in vLLM's engine process and sends these numbers only when statistics are on. Then vLLM's front end
also keeps statistics of its own on every token, which cost far more than they tell us; those are turned off again.
Read in 0.26 and 0.32; where a version looks different, numbers are missing and nothing else is.
"""

from __future__ import annotations

from typing import Any

from enginebay.contract import Stats


class SchedulerStatsReader:
    """The last step's numbers. Written in the loop's thread, read in any."""

    def __init__(self) -> None:
        self._latest = Stats()

    def attach(self, llm: Any) -> None:
        """Before the first request: listen to each step, and end the counting of tokens in this process."""
        processor = llm.output_processor
        llm.log_stats = False
        llm.logger_manager = None
        processor.log_stats = False
        if hasattr(processor, "lora_states"):
            processor.lora_states.log_stats = False
        update = getattr(processor, "update_scheduler_stats", None)
        if update is None:
            return

        def take_and_update(scheduler_stats: Any) -> Any:
            if scheduler_stats is not None:
                self._update(scheduler_stats)
            return update(scheduler_stats)

        processor.update_scheduler_stats = take_and_update

    def read(self) -> Stats:
        return self._latest

    def _update(self, scheduler_stats: Any) -> None:
        used = getattr(scheduler_stats, "kv_cache_usage", None)
        waiting = getattr(scheduler_stats, "num_waiting_reqs", None)
        if waiting is not None:  # some wait for a grammar or an adapter, in a queue of their own
            waiting += getattr(scheduler_stats, "num_skipped_waiting_reqs", 0)
        self._latest = Stats((self._latest.steps or 0) + 1, used, waiting)
