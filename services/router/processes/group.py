"""What the processes of a router share, as their parent opens it: a row of ports."""

from __future__ import annotations

from outrider.process import Ports
from outrider.workers.ports import reserve_row
from outrider.workers.worker import Worker
from services.router.config import RouterConfig


class RouterGroup:
    """The ports are the processes' own, as those of several routers: an edge has one connection to
    a router, which would take all of its sessions to one process of those that share a port."""

    def __init__(self, config: RouterConfig) -> None:
        """Raises ConfigError."""
        self.count = config.processes
        self._reserved = reserve_row(config.host, config.port, self.count)
        self._first = int(self._reserved[0].getsockname()[1])

    @property
    def ports(self) -> Ports:
        """Of all processes together."""
        return Ports(main=self._first, admin=0, num_main=self.count)

    @property
    def kept(self) -> tuple[int, ...]:
        """Nothing: each process has its port."""
        return ()

    def worker(self, index: int) -> Worker:
        """What process `index` is told."""
        return Worker(index, self.count, port=self._first + index)

    def set_live(self, live: frozenset[int]) -> None:
        """Edges see for themselves which of them answer."""

    def ended(self, index: int) -> None:
        """Nothing is held together."""

    def stop_listening(self) -> None:
        """The processes stop by themselves."""

    def close(self) -> None:
        """All processes have ended."""
        for each in self._reserved:
            each.close()


def open_group(config: RouterConfig) -> RouterGroup:
    """Raises ConfigError."""
    return RouterGroup(config)
