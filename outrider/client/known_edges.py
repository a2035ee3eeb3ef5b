"""The edges that a client may connect to, and in which order it tries them (pure).

A program names some. Those of the signed list of the mesh (outrider.edge_list) stand beside them
while the list is valid.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from outrider.client.address import EdgeAddress
from outrider.edge_list import EdgeList, ListedEdge, accepted, read


class KnownEdges:
    """Edges by name and by list. Times `now` are seconds since 1970."""

    def __init__(self, named: Sequence[EdgeAddress], keys: Sequence[Ed25519PublicKey] = ()) -> None:
        """`named`: at least one, in the program's order. A listed edge is verified as they are.
        `keys`: who may sign lists; none: there is no list."""
        self._named = tuple(named)
        self._keys = tuple(keys)
        self._list: EdgeList | None = None
        """The newest that was accepted, ended or not: older ones are refused."""
        self._handshake_s: dict[EdgeAddress, float] = {}
        """How long a handshake took with each edge of the list."""

    def take(self, text: bytes, now: float) -> bool:
        """A list came from an edge; whether it is newer than the one known. Raises EdgeListError,
        and then nothing changes."""
        newest = accepted(text, self._keys, now, self._list)
        is_newer = newest != self._list
        self._set(newest)
        return is_newer

    def take_kept(self, text: bytes) -> None:
        """A list that was accepted in an earlier run of the program; an ended one still says which
        are older. Raises EdgeListError."""
        self._set(read(text).check(self._keys))

    def in_order(self, now: float, after: EdgeAddress | None = None) -> tuple[EdgeAddress, ...]:
        """All edges, each once, as they are to be tried. `after`: the edge that was used last,
        which comes first if it is still one of them. The named ones follow as they are named, from
        it on, then the listed ones by the time of a handshake; those without a time come last, as
        they are listed."""
        named = self._named
        if after in named:
            at = named.index(after)
            named = (*named[at:], *named[:at])
        known = (*named, *self._by_distance(now))
        first = (after,) if after in known else ()
        return tuple(dict.fromkeys((*first, *known)))

    def unmeasured(self, now: float) -> tuple[EdgeAddress, ...]:
        """Listed edges with which no handshake was complete yet."""
        return tuple(it for it in self._listed(now) if self._distance(it) == math.inf)

    def measured(self, edge: EdgeAddress, handshake_s: float) -> None:
        """A handshake with a listed edge took so long; infinity: it failed."""
        self._handshake_s[edge] = handshake_s

    def _set(self, newest: EdgeList) -> None:
        self._list = newest
        still = {self._address(edge) for edge in newest.edges}
        self._handshake_s = {at: it for at, it in self._handshake_s.items() if at in still}

    def _by_distance(self, now: float) -> list[EdgeAddress]:
        return sorted(self._listed(now), key=self._distance)

    def _listed(self, now: float) -> list[EdgeAddress]:
        if self._list is None or self._list.has_ended(now):
            return []
        places = {(edge.host.lower(), edge.port) for edge in self._named}
        edges = [it for it in self._list.edges if (it.host, it.port) not in places]
        return [self._address(edge) for edge in edges]

    def _address(self, edge: ListedEdge) -> EdgeAddress:
        like = self._named[0]
        return replace(
            like,
            host=edge.host,
            port=edge.port,
            http_port=edge.tcp_port,
            server_name=edge.server_name or like.server_name,
        )

    def _distance(self, edge: EdgeAddress) -> float:
        return self._handshake_s.get(edge, math.inf)
