"""Runs shards on Ray Data: `pip install 'outrider[ray]'`.

Workers read the input and write the shards themselves: on a cluster both have to be on storage
that all nodes see under the same paths.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Generator, Iterator
from typing import Any, Protocol

from outrider.bulk.plan.results import ShardOutcome
from outrider.bulk.plan.shards import Shard
from outrider.bulk.worker import ENVIRONMENT
from outrider.errors import ConfigError, OutriderError
from outrider.extras import install_command


class ShardWorker(Protocol):
    """Interface of an actor."""

    def run(self, shard: Shard) -> ShardOutcome:
        """Write the shard. Raises OutriderError, OSError."""


class RayExecutor:
    """Runs actors on a Ray cluster, one core each; Ray retries a shard whose actor dies."""

    def __init__(
        self, make_worker: Callable[[], ShardWorker], num_workers: int, address: str | None
    ) -> None:
        """`make_worker` is pickled, and called once in every actor. `address` of a cluster, "auto"
        for the one of this machine; None starts one, of `num_workers` cores, for this run. Raises
        ConfigError without Ray."""
        self._make_worker = make_worker
        self._num_workers = num_workers
        self._ray = self._connected(address)

    def run(self, shards: list[Shard]) -> Generator[ShardOutcome, None, None]:
        """The outcome of each, in any order. Raises OutriderError."""
        try:
            yield from self._results(shards) if shards else ()
        except self._ray.exceptions.RayError as error:
            raise OutriderError(f"Ray gave up: {error}") from error
        finally:
            self.close()

    def close(self) -> None:
        """Leave the cluster, or end the one of this run."""
        self._ray.shutdown()

    def _results(self, shards: list[Shard]) -> Iterator[ShardOutcome]:
        items = [{"shard": pickle.dumps(shard)} for shard in shards]
        dataset = self._ray.data.from_items(items, override_num_blocks=len(items))
        done = dataset.map(
            _Actor,
            fn_constructor_args=(pickle.dumps(self._make_worker),),
            compute=self._ray.data.ActorPoolStrategy(size=min(self._num_workers, len(items))),
            num_cpus=1,
        )
        for row in done.iter_rows():
            yield pickle.loads(row["result"])  # noqa: S301 - our own workers wrote it

    def _connected(self, address: str | None) -> Any:
        try:
            import ray
            import ray.data
        except ImportError as error:
            raise ConfigError(f"Ray is not installed: {install_command('ray')}") from error
        local = {"num_cpus": self._num_workers, "include_dashboard": False}
        ray.init(
            address=address or "local",
            log_to_driver=False,
            logging_level="warning",
            runtime_env={"env_vars": ENVIRONMENT},
            **({} if address else local),
        )
        ray.data.DataContext.get_current().enable_progress_bars = False
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        return ray


class _Actor:
    """One worker; Ray makes it once and calls it for every shard."""

    def __init__(self, make_worker: bytes) -> None:
        make: Callable[[], ShardWorker] = pickle.loads(make_worker)  # noqa: S301 - our command's
        self._worker = make()

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        shard: Shard = pickle.loads(row["shard"])  # noqa: S301
        return {"result": pickle.dumps(self._worker.run(shard))}
