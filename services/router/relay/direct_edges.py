"""Which edges may have their commits sent to them by the replicas themselves. Pure."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from outrider.tls.identity import PeerIdentity

EVERY_EDGE: Final = "*"


def direct_name(caller: PeerIdentity | None, regions: Collection[str]) -> str | None:
    """What replicas know an edge by that may; None: it may not. `caller` is the owner of its
    certificate, None in a mesh without any. Edges of these regions may, or with "*" all."""
    if EVERY_EDGE in regions:
        return str(caller or "")
    return str(caller) if caller is not None and caller.region in regions else None
