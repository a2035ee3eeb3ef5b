"""The share of a router's settings that each of its processes gets (pure).

Each process is a router of its own, with its own queue; edges choose among them by the number of
sessions that each has. Limits of the whole router are divided, down to one for each process.
"""

from __future__ import annotations

from dataclasses import replace

from outrider.telemetry.config import AdminConfig
from services.router.admission.tenants import TenantPolicy
from services.router.config import RouterConfig


def share_of(config: RouterConfig, process: int, port: int) -> RouterConfig:
    """For process number `process` of `config.processes`, at this port. Its admin port is its own,
    for its parent."""
    count = config.processes
    admission, embedding = config.admission, config.embedding
    return replace(
        config,
        processes=1,
        port=port,
        admin=AdminConfig(port=0),
        admission=replace(
            admission,
            max_waiting=_part(admission.max_waiting, count),
            max_above_low_per_address=_part(admission.max_above_low_per_address, count),
        ),
        embedding=replace(
            embedding,
            max_inputs=_part(embedding.max_inputs, count),
            max_bytes=_part(embedding.max_bytes, count),
        ),
        tenants=tuple(_tenant(tenant, process, count) for tenant in config.tenants),
        max_sessions=_part(config.max_sessions, count),
        max_kept_bytes=_part(config.max_kept_bytes, count),
        prompt_memory_bytes=config.prompt_memory_bytes // count,
        max_tokenizing=_part(config.max_tokenizing, count),
    )


def _tenant(tenant: TenantPolicy, process: int, count: int) -> TenantPolicy:
    """Divide a tenant's limits; the first processes get one session more if the number does not
    divide evenly."""
    sessions, more = divmod(tenant.max_sessions, count)
    return replace(
        tenant,
        max_sessions=sessions + (process < more),
        tokens_per_minute=tenant.tokens_per_minute // count,
    )


def _part(number: int, count: int) -> int:
    return max(1, number // count)
