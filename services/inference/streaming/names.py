"""Which requests run, by tenant and request id. Edges bind ids to trust groups: nobody's are in the
way of another's (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from outrider.errors import DuplicateSessionError
from services.inference.scheduler.types import OpenRequest

Name: TypeAlias = tuple[str, str]
"""Tenant and request id."""


@dataclass(frozen=True, slots=True)
class _Run:
    key: int
    request: OpenRequest


class RunningNames:
    """Those that nobody has asked to stop; each runs once.

    Whoever opens the same request again under its name is its client, or a router on its behalf:
    edges make ids of a secret of the client's. What the earlier run was for is gone then, noticed
    or not, and the newer one takes its place. For another prompt the name proves nothing.
    """

    def __init__(self) -> None:
        self._runs: dict[Name, _Run] = {}

    def __len__(self) -> int:
        return len(self._runs)

    def earlier(self, name: Name, request: OpenRequest) -> int | None:
        """Key of the run that this one takes the place of. Raises DuplicateSessionError where the
        name is another request's."""
        run = self._runs.get(name)
        if run is None:
            return None
        if (run.request.prompt, run.request.sampling) != (request.prompt, request.sampling):
            raise DuplicateSessionError(
                f"another request runs under the id {name[1]}; cancel it or take a new id"
            )
        return run.key

    def claim(self, name: Name, request: OpenRequest) -> None:
        """It runs from now on, instead of any earlier one."""
        self._runs[name] = _Run(request.session, request)

    def release(self, name: Name, key: int) -> None:
        """The run of this key is over, or will be; a newer one keeps the name."""
        run = self._runs.get(name)
        if run is not None and run.key == key:
            del self._runs[name]
