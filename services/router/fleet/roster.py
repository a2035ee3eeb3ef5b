"""Replicas by name, and how those that were discovered get theirs. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from outrider.errors import UnavailableError
from services.router.fleet.replica import Replica


class Roster:
    """The rows. Every name whose row comes, goes or changes is left in `changed`."""

    def __init__(self, rtt_ms: Callable[[str], float]) -> None:
        """`rtt_ms` guesses the round trip to a region, where no replica of it is measured."""
        self._rtt_ms = rtt_ms
        self._rows: dict[str, Replica] = {}
        self.changed: set[str] = set()

    def __iter__(self) -> Iterator[Replica]:
        return iter(self._rows.values())

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, name: str) -> Replica:
        return self._rows[name]

    def find(self, name: str) -> Replica | None:
        """The row of that name, if there is one."""
        return self._rows.get(name)

    def add(self, replica: Replica) -> Replica:
        """A row, under its name."""
        self._rows[replica.name] = replica
        self.changed.add(replica.name)
        return replica

    def remove(self, name: str) -> None:
        """Forget a row."""
        del self._rows[name]
        self.changed.add(name)

    def claim(self, replica: Replica, name: str) -> bool:
        """A row takes a name; whether it had another one before.

        Raises UnavailableError if the name is that of a configured replica, or of one that is
        reached. A discovered one that is not goes by its address again.
        """
        if name == replica.name:
            return False
        other = self._rows.get(name)
        if other is not None:
            if other.health.is_up or not other.source:
                raise UnavailableError(
                    f"it calls itself {name}, as the replica at {other.address} does: give every "
                    "replica a name of its own"
                )
            self._rename(other, other.address)
        self._rename(replica, name)
        return True

    def guess_ms(self, region: str) -> float:
        """The way to a region is as long as that to the nearest replica measured there."""
        measured = [r.rtt.min_ms for r in self if r.region == region and r.rtt.is_measured]
        return min(measured, default=None) or self._rtt_ms(region)

    def _rename(self, replica: Replica, name: str) -> None:
        self.remove(replica.name)
        replica.name = name
        self.add(replica)
