"""State of one process of an edge, and the counts that it shares with the other processes."""

from __future__ import annotations

import socket
import time
from typing import Literal

from outrider.workers.worker import Worker
from services.edge.access.limiter import LimitSharing
from services.edge.access.shared_limits import open_shared_limits
from services.edge.config import EdgeConfig
from services.edge.limits.listener import ListenerLimits, ListenerQuotas
from services.edge.processes.limits import HostLimits
from services.edge.processes.quotas import SharedQuotas
from services.edge.processes.share import share_of
from services.edge.processes.usage import SharedUsage
from services.edge.quic.connection_ids import ConnectionIds


class EdgeProcess:
    """The only process of an edge, or one of several."""

    def __init__(self, config: EdgeConfig, worker: Worker | None) -> None:
        """`config`: of the whole edge. `worker`: what this process was told; None: it is the only
        one."""
        self._worker = worker
        self._usage = (
            None if worker is None else SharedUsage(worker.usage, worker.index, worker.count)
        )
        """Counts over all processes; None: there is only one."""
        self.config = config if worker is None else share_of(config, worker.index)
        """Settings, with this process's share of the limits."""
        self.ids = None if worker is None else ConnectionIds(worker)
        """Connection IDs that lead here; None: any do."""
        self.named = None if worker is None else worker.named
        """Makes random bytes that lead here; None: any do."""
        self.trust_key = None if worker is None else worker.key("trust groups")
        """From which the names of trust groups are derived, where the settings have no secret;
        None: a random one."""

    def quotas(self, limits: ListenerLimits) -> ListenerQuotas:
        """Quotas of addresses and clients at a listener."""
        if self._worker is None or self._usage is None:
            return ListenerQuotas(limits)
        key, usage = self._worker.key("quotas"), self._usage
        return ListenerQuotas(
            limits,
            quotas=SharedQuotas[str](limits.quotas, usage, key, "address"),
            client_quotas=SharedQuotas[bytes](limits.client_quotas, usage, key, "client"),
        )

    def limit_sharing(self) -> LimitSharing | None:
        """With whom the limits of tenants are held: a Redis, or the edge's other processes. Asked
        once listening begins."""
        shared = open_shared_limits(self.config.shared_limits)
        if shared is not None or self._worker is None or self._usage is None:
            return shared
        return HostLimits(self._usage, self._worker.key("tenants"), time.monotonic)

    def opened(self, what: Literal["datagrams", "connections"]) -> socket.socket | None:
        """The socket of that name that the parent opened; None: there is none."""
        descriptor = -1 if self._worker is None else getattr(self._worker, what)
        return None if descriptor < 0 else socket.socket(fileno=descriptor)
