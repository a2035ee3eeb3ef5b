"""A replica of the fake engine, a router, and two edges that share a secret, each a process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.harness.local_mesh import outrider
from bench.harness.mesh import Service, mesh, replica_rows

CALL_MS = 40.0
"""Of the fake engine: a reply of 250 tokens takes 10 s, and is under way when an edge is lost."""
SECRET = "the secret of both edges, so that their chats have the same ids"


@dataclass(frozen=True)
class Fleet:
    """They run."""

    router: Service
    edges: tuple[Service, Service]
    ca: Path
    list_key: str
    """Public key of the list that has both edges."""


def sign(edge_list: Path, addresses: Sequence[str], key_file: Path) -> str:
    """Write the list of these edges; returns its public key."""
    made = outrider("edges", "key", str(key_file))
    outrider("edges", "sign", str(edge_list), *addresses, "--key-file", str(key_file))
    return made.stdout.strip()


@asynccontextmanager
async def running(name: str) -> AsyncIterator[Fleet]:
    """The processes, in a folder of this name."""
    async with mesh(name) as made:
        computing = {"replica": "one", "engine": "fake", "fake_call_ms": CALL_MS}
        replica = made.service("one", "inference", computing, region="here")
        routing = {"replicas": replica_rows([replica]), "max_backoff_s": 0.2}
        router = made.service("router", "router", routing, region="here")
        key_file, edge_list = made.folder / "edges.key", made.folder / "edges.json"
        serving: dict[str, object] = {
            "routers": (router.address,),
            "state_dir": str(made.folder),
            "cache_salt_key": SECRET,
            "anonymous": True,
            "drafter.model": "none",
            "edge_list": str(edge_list),
        }
        first, second = (
            made.service(name, "edge", {"name": name, **serving}, region="here")
            for name in ("first", "second")
        )
        addresses = (first.address, second.address)
        list_key = await asyncio.to_thread(sign, edge_list, addresses, key_file)
        # The first edge makes the certificate that the other one finds.
        for group in ([replica], [router], [first], [second]):
            await made.start(*group)
        yield Fleet(router, (first, second), made.ca, list_key)
