"""Who has how much of what waits, and who loses some when it is too much. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter, itemgetter
from typing import Generic, Protocol, TypeVar

from outrider.fair_work.turns import Requester


class Held(Hashable, Protocol):
    """What takes a place, and memory. It is equal only to itself."""

    @property
    def requester(self) -> Requester:
        """Whose it is."""
        ...

    @property
    def size(self) -> float:
        """Characters, bytes or what else is bounded beside places."""
        ...

    @property
    def number(self) -> int:
        """In order of arrival."""
        ...


HeldT = TypeVar("HeldT", bound=Held)


@dataclass(slots=True)
class Shares(Generic[HeldT]):
    """What is held, of everybody, of one origin in it, or of one client of that."""

    count: int = 0
    size: float = 0
    _parts: dict[str, Shares[HeldT]] = field(default_factory=dict)
    """By origin or client."""
    _items: dict[HeldT, None] = field(default_factory=dict)
    """Of one client."""

    def add(self, item: HeldT) -> None:
        """An item is held from now on."""
        self._add(item, item.requester)

    def admit(
        self,
        new: HeldT,
        max_count: float,
        max_size: float,
        *,
        taken_count: int = 0,
        taken_size: float = 0,
    ) -> list[HeldT] | None:
        """Hold `new`, and at most so much in all, beside what is taken otherwise; one alone may be
        larger. Returns the items that were given up for it, and are not held any more; None if
        `new` is refused, and then nothing has changed.

        Whoever has most gives up the newest: among the origins, and then among that one's clients,
        by the larger share of the places or of the size (Ghodsi et al., "Dominant resource
        fairness", NSDI 2011). Of equally greedy ones it is who asks for `new`."""
        self.add(new)
        given_up = list[HeldT]()
        while (count := self.count + taken_count) > max_count or (
            count > 1 and self.size + taken_size > max_size
        ):
            newest = self._newest_of_greediest(new, max_count, max_size)
            self.remove(newest)
            if newest is new:
                for one in given_up:
                    self.add(one)
                return None
            given_up.append(newest)
        return given_up

    def remove(self, item: HeldT) -> None:
        """An item that is held is so no longer."""
        self._remove(item, item.requester)

    def _newest_of_greediest(self, new: HeldT, max_count: float, max_size: float) -> HeldT:
        def share(name: str, part: Shares[HeldT], own: str) -> tuple[float, bool]:
            return max(part.count / max(1, max_count), part.size / max_size), name == own

        shares = self
        for own in new.requester:
            rows = ((share(name, part, own), part) for name, part in shares._parts.items())
            shares = max(rows, key=itemgetter(0))[1]
        return max(shares._items, key=attrgetter("number"))

    def _add(self, item: HeldT, path: Sequence[str]) -> None:
        """`path`: names of the parts that the item is in."""
        self.count += 1
        self.size += item.size
        if path:
            self._parts.setdefault(path[0], Shares())._add(item, path[1:])
        else:
            self._items[item] = None

    def _remove(self, item: HeldT, path: Sequence[str]) -> None:
        self.count -= 1
        self.size -= item.size
        if not path:
            del self._items[item]
            return
        part = self._parts[path[0]]
        part._remove(item, path[1:])
        if not part.count:
            del self._parts[path[0]]
