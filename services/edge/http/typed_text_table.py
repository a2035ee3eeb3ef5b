"""The messages that are being typed over HTTP."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import Final

from outrider.errors import OverloadedError
from services.edge.access.identity import Identity
from services.edge.chat.answer_ahead import AnswerAhead
from services.edge.chat.typeahead import TypeaheadPrefill
from services.edge.session.events import ClientGone

KEPT_S: Final = 30
"""A text of which nothing is heard for so long is forgotten."""
MAX_TEXTS: Final = 4096
MAX_TEXTS_PER_ADDRESS: Final = 64


def typist_of(identity: Identity | None) -> str:
    """Who may go on with a message, or send it: whoever has the same key or, without one, the same
    client. The id alone is not enough. `identity`: before an end user is named, for the requests
    that go on with a message name none."""
    if identity is None:
        return ""
    return f"{identity.tenant}\0{identity.key_id or identity.owner.hex()}"


@dataclass(slots=True)
class TextBeingTyped:
    """One message."""

    prefill: TypeaheadPrefill
    seed: int
    sequence: int
    address: str
    timer: asyncio.TimerHandle | None = None


class TypedTexts:
    """The messages that are being typed over HTTP, by typist and id. Bounded, for each address
    prefix and in all."""

    def __init__(
        self, max_texts: int = MAX_TEXTS, max_per_address: int = MAX_TEXTS_PER_ADDRESS
    ) -> None:
        self._max_texts = max_texts
        self._max_per_address = max_per_address
        self._texts: dict[tuple[str, str], TextBeingTyped] = {}
        self._of_address: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._texts)

    def find(self, typist: str, text_id: str) -> TextBeingTyped | None:
        """The text of this id, if it still goes on."""
        found = self._texts.get((typist, text_id))
        if found is not None and found.prefill.closed:
            self._forget((typist, text_id))
            return None
        return found

    def seed(self, typist: str, text_id: str) -> int | None:
        """The seed of the reply that may have been begun; None: no such text is known."""
        found = self.find(typist, text_id)
        return None if found is None else found.seed

    def check_room(self, address: str) -> None:
        """Raises OverloadedError if there is none for one more of this address prefix."""
        if self._of_address[address] >= self._max_per_address:
            raise OverloadedError(
                "too many messages are being typed at this address; send them as they are",
                retry_delay_ms=KEPT_S * 1000,
            )
        if len(self._texts) >= self._max_texts:
            raise OverloadedError(
                "too many messages are being typed; send this one as it is",
                retry_delay_ms=KEPT_S * 1000,
            )

    def add(self, typist: str, text_id: str, text: TextBeingTyped) -> None:
        """One more. Raises OverloadedError."""
        self.check_room(text.address)
        self._texts[typist, text_id] = text
        self._of_address[text.address] += 1
        self.heard_of(typist, text_id)

    def heard_of(self, typist: str, text_id: str) -> None:
        """It goes on: from now on it is kept for `KEPT_S`."""
        text = self._texts[typist, text_id]
        if text.timer is not None:
            text.timer.cancel()
        loop = asyncio.get_running_loop()
        text.timer = loop.call_later(KEPT_S, self._expired, (typist, text_id))

    def take(self, typist: str, text_id: str) -> AnswerAhead | None:
        """The message was sent. Returns the reply that may have been begun to it."""
        found = self.find(typist, text_id)
        if found is None:
            return None
        self._forget((typist, text_id))
        return found.prefill.hand_over()

    def close(self) -> None:
        """The edge stops."""
        for key in list(self._texts):
            self._expired(key)

    def _expired(self, key: tuple[str, str]) -> None:
        text = self._texts[key]
        self._forget(key)
        text.prefill.feed(ClientGone())

    def _forget(self, key: tuple[str, str]) -> None:
        text = self._texts.pop(key)
        if text.timer is not None:
            text.timer.cancel()
        self._of_address[text.address] -= 1
        if not self._of_address[text.address]:
            del self._of_address[text.address]
