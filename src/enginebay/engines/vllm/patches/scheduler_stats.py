"""Statistics of vLLM's scheduler after each step: KV cache usage and waiting requests.

The scheduler runs in vLLM's engine process and sends these numbers only with log_stats on. That also enables
per-token statistics in this process, which are expensive and unused, so this module turns them off again.
"""

from __future__ import annotations

from typing import Any

from enginebay.contract import Stats


class SchedulerStatsReader:
    """Holds the last step's numbers. Written in the loop's thread, read in any."""

    def __init__(self) -> None:
        self._latest = Stats()

    def attach(self, llm: Any) -> None:
        """Hook into each step and turn off per-token statistics. Call it before the first request."""
        processor = llm.output_processor
        llm.log_stats = False
        llm.logger_manager = None
        processor.log_stats = False
        processor.lora_states.log_stats = False
        update = processor.update_scheduler_stats

        def read_and_update(scheduler_stats: Any) -> Any:
            if scheduler_stats is not None:
                self._update(scheduler_stats)
            return update(scheduler_stats)

        processor.update_scheduler_stats = read_and_update

    def read(self) -> Stats:
        return self._latest

    def _update(self, scheduler_stats: Any) -> None:
        # Requests that wait for a grammar or an adapter have their own queue.
        waiting = scheduler_stats.num_waiting_reqs + scheduler_stats.num_skipped_waiting_reqs
        self._latest = Stats((self._latest.steps or 0) + 1, scheduler_stats.kv_cache_usage, waiting)
