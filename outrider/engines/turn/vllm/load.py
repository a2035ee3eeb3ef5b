"""What vLLM says of its scheduler after each step, by the interface of its stat loggers."""

from __future__ import annotations

from typing import Any


class LatestStats:
    """A factory of stat loggers that keep the newest numbers here."""

    def __init__(self) -> None:
        self.num_waiting = 0
        self.kv_usage = 0.0
        """Share of the KV blocks that are in use or cached for somebody."""

    def __call__(self, vllm_config: Any, engine_index: int = 0) -> LatestStats:
        """vllm.v1.metrics.loggers.StatLoggerFactory."""
        return self

    def record(
        self,
        scheduler_stats: Any,
        iteration_stats: Any,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
    ) -> None:
        """vllm.v1.metrics.loggers.StatLoggerBase.record."""
        if scheduler_stats is not None:
            self.num_waiting = int(scheduler_stats.num_waiting_reqs)
            self.kv_usage = float(scheduler_stats.kv_cache_usage)

    def log_engine_initialized(self) -> None:
        """Nothing to say."""

    def log(self) -> None:
        """Nothing to say."""

    def record_sleep_state(self, is_awake: int, level: int) -> None:
        """It never sleeps."""
