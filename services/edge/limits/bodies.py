"""Memory for bodies of requests that are still arriving (pure).

A body holds what has come of it, whatever length was told: a head alone holds nothing. Many that
arrive beside each other could then fill the memory, each in part and none of them whole. So where
an address or the edge has no memory left, the body that has been silent for longest loses its own,
and its request is refused: those that still arrive become whole, and who has stopped sending keeps
nothing from others. What the edge lacks is taken from the address that holds most.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from outrider.errors import OverloadedError
from services.edge.limits.listener import MemoryBudget


class ArrivingBody:
    """One body. Made by `BodyMemory.begin`."""

    def __init__(
        self, memory: BodyMemory, budget: MemoryBudget, refuse: Callable[[], None]
    ) -> None:
        self._memory = memory
        self._refuse = refuse
        self._is_refused = False
        self.budget = budget
        self.address = budget
        """The budget of its address: the last one but that of all."""
        while self.address.parent is not None and self.address.parent.parent is not None:
            self.address = self.address.parent
        self.all = self.address.parent
        """The budget of all addresses, if there is one."""
        self.num_bytes = 0
        """Held now."""

    def grow(self, num_bytes: int) -> None:
        """So many bytes more have come. Raises OverloadedError, and holds nothing, if there is no
        memory for them, or others needed what this body had."""
        if not self._is_refused and not self._memory.grow(self, num_bytes):
            self._is_refused = True
            self.release()
        self.check()

    def check(self) -> None:
        """Raises OverloadedError if it lost its memory to others."""
        if self._is_refused:
            raise OverloadedError(
                "this edge has no memory for more incomplete requests; send fewer at once"
            )

    def arrived(self) -> None:
        """It is whole: what it holds is kept until `release`."""
        self._memory.forget(self)

    def release(self) -> None:
        """It is not needed any more. May be called again."""
        self._memory.forget(self)
        self.budget.give_back(self.num_bytes)
        self.num_bytes = 0

    def give_way(self) -> None:
        """Others need the memory."""
        self._is_refused = True
        self.release()
        self._refuse()


class BodyMemory:
    """The bodies that are arriving at one edge."""

    def __init__(self) -> None:
        self._by_address: dict[MemoryBudget, OrderedDict[ArrivingBody, None]] = {}
        """Those that hold something, by the budget of their address; who came last is last."""

    def begin(self, budget: MemoryBudget, refuse: Callable[[], None]) -> ArrivingBody:
        """A body of which nothing has come. `budget`: of its request or connection, within that of
        an address, within that of all. `refuse` is called, once, when others took its memory."""
        return ArrivingBody(self, budget, refuse)

    def grow(self, body: ArrivingBody, num_bytes: int) -> bool:
        """Hold more of a body; False if there is no memory that could be had for it."""
        while (lacking := body.budget.lacking(num_bytes)) is not None:
            silent = self._silent(lacking, body)
            if silent is None:
                return False
            silent.give_way()
        body.budget.take(num_bytes)
        body.num_bytes += num_bytes
        bodies = self._by_address.setdefault(body.address, OrderedDict())
        bodies[body] = None
        bodies.move_to_end(body)
        return True

    def forget(self, body: ArrivingBody) -> None:
        """It arrives no more."""
        bodies = self._by_address.get(body.address)
        if bodies is not None:
            bodies.pop(body, None)
            if not bodies:
                del self._by_address[body.address]

    def _silent(self, lacking: MemoryBudget, body: ArrivingBody) -> ArrivingBody | None:
        """Who gives way to `body`, where this budget is used up; None: nobody."""
        address = body.address
        if lacking is body.all:
            address = max(self._by_address, key=lambda it: it.num_bytes, default=address)
        elif lacking is not address:
            return None  # its connection holds too much
        return next((it for it in self._by_address.get(address, ()) if it is not body), None)
