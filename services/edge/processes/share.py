"""One process's part of the settings of an edge with several.

Bounds of the edge's memory, connections and chats are divided, so that together the processes never
exceed the settings. Limits of one client, address or tenant are not divided: all processes count
them together (services.edge.processes.usage).
"""

from __future__ import annotations

from dataclasses import replace

from outrider.telemetry.config import AdminConfig
from services.edge.chat.resumption_table import ResumeLimits
from services.edge.config import EdgeConfig
from services.edge.limits.listener import ListenerLimits
from services.edge.quic.certificate import CERTIFICATE_FILE, KEY_FILE


def share_of(config: EdgeConfig, process: int) -> EdgeConfig:
    """The settings for process number `process` of `config.processes`. Each has an admin port of
    its own, for its parent; all but the first keep their statistics in a folder of their own, and
    use the first one's certificate."""
    count = config.processes
    shared = replace(
        config,
        quic=_quic(config.quic, count),
        http=replace(config.http, max_connections=_part(config.http.max_connections, count)),
        resumption=_resumption(config.resumption, count),
        admin=AdminConfig(port=0),
        access=replace(config.access, keys_file=config.keys_file),
    )
    if process == 0:
        return shared
    own = replace(shared, state_dir=config.state_dir / f"process-{process}")
    if config.certificate is not None:
        return own
    folder = config.tls_folder
    return replace(own, certificate=folder / CERTIFICATE_FILE, private_key=folder / KEY_FILE)


def _quic(limits: ListenerLimits, count: int) -> ListenerLimits:
    least = limits.max_frame_bytes
    return replace(
        limits,
        max_connections=_part(limits.max_connections, count),
        max_half_open=_part(limits.max_half_open, count),
        retry_from_half_open=limits.retry_from_half_open
        and _part(limits.retry_from_half_open, count),
        max_received_bytes=max(least, limits.max_received_bytes // count),
        max_received_bytes_per_address=max(least, limits.max_received_bytes_per_address // count),
    )


def _resumption(limits: ResumeLimits, count: int) -> ResumeLimits:
    return replace(
        limits,
        max_detached=limits.max_detached // count,
        max_detached_each=limits.max_detached_each // count,
        max_bytes=limits.max_bytes // count,
    )


def _part(number: int, count: int) -> int:
    return max(1, number // count)
