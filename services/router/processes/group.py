"""Resources that the processes of a router share and their parent opens: a row of ports."""

from __future__ import annotations

from outrider.process import Ports
from outrider.workers.ports import reserve_row
from outrider.workers.worker import Worker
from services.router.config import RouterConfig


class RouterGroup:
    """The ports of a router's processes, one for each, like those of several routers.

    An edge has one connection to a router; if the processes shared a port, all of its sessions
    would reach the same process.
    """

    def __init__(self, config: RouterConfig) -> None:
        """Raises ConfigError."""
        self.count = config.processes
        self._reserved = reserve_row(config.host, config.port, self.count)
        self._first = int(self._reserved[0].getsockname()[1])

    @property
    def ports(self) -> Ports:
        """First main port and number of all processes' ports."""
        return Ports(main=self._first, admin=0, num_main=self.count)

    @property
    def kept(self) -> tuple[int, ...]:
        """Nothing: each process has its port."""
        return ()

    def worker(self, index: int) -> Worker:
        """Settings of process `index`."""
        return Worker(index, self.count, port=self._first + index)

    def set_live(self, live: frozenset[int]) -> None:
        """Do nothing: edges detect which processes answer."""

    def ended(self, index: int) -> None:
        """Do nothing: the processes share no state."""

    def stop_listening(self) -> None:
        """Do nothing: the processes stop by themselves."""

    def close(self) -> None:
        """Close the reserved ports, after all processes have ended."""
        for each in self._reserved:
            each.close()


def open_group(config: RouterConfig) -> RouterGroup:
    """Raises ConfigError."""
    return RouterGroup(config)
