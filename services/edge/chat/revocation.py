"""Ends the chats of API keys that are good no longer: removed, revoked or expired."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final, Protocol

from outrider.errors import UnauthenticatedError
from services.edge.access.identity import Identities, Identity
from services.edge.chat.time_slicing import TimeSlicer
from services.edge.session.events import ClientFailed, Input
from services.edge.telemetry.edge import EdgeTelemetry

_CHECK_S: Final = 1.0
"""Seconds between two checks for expired keys; a changed file is checked at once."""


class Keyed(Protocol):
    """A chat, or text that is being typed."""

    @property
    def closed(self) -> bool:
        """Whether it is over."""
        ...

    def feed(self, item: Input) -> None:
        """It ends, for this reason."""
        ...


class KeyedChats:
    """Chats and typed-text computations that run with API keys, which end when their keys do.
    Whatever is added has to be removed when it ends."""

    def __init__(
        self, identities: Identities, time_slicer: TimeSlicer, telemetry: EdgeTelemetry
    ) -> None:
        self._identities = identities
        self._time_slicer = time_slicer
        self._telemetry = telemetry
        self._identity_of: dict[Keyed, Identity] = {}
        """Identity that each one runs with: the client who asked last, if several keys of a tenant
        continue one chat."""
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._identity_of)

    def add(self, chat: Keyed, identity: Identity) -> None:
        """It runs with this identity from now on."""
        if not identity.key_id:
            self.remove(chat)
            return
        self._identity_of[chat] = identity
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_CHECK_S, self._due)

    def remove(self, chat: Keyed) -> None:
        """It has ended."""
        self._identity_of.pop(chat, None)
        if not self._identity_of and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def check(self) -> None:
        """End everything that runs with an invalid key, a part of it in each turn of the loop."""
        for chat, identity in list(self._identity_of.items()):
            try:
                self._identities.check(identity)
            except UnauthenticatedError as error:
                self.remove(chat)
                self._telemetry.refused(error.reason)
                self._time_slicer.defer(partial(_end, chat, error.bare()))

    def _due(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_CHECK_S, self._due)
        self.check()


def _end(chat: Keyed, error: UnauthenticatedError) -> None:
    if not chat.closed:
        chat.feed(ClientFailed(error))
