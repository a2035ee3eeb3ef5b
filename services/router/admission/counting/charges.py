"""Several runs of one chat are one charge. Pure."""

from __future__ import annotations

from typing import Final

from services.router.prefixes.recent import RecentMap

MAX_CHATS: Final = 4096


class Charges:
    """What chats were charged so far, of those that were charged last.

    A chat runs more than once where its edge was lost or its client turned to another one: each run
    brings the tokens that the client has, and costs as much as if it had been the only one. All of
    them give the same text, so together they are charged what the dearest costs.
    """

    def __init__(self, max_chats: int = MAX_CHATS) -> None:
        self._charged: RecentMap[bytes, int] = RecentMap(max_chats)

    def add(self, chat: bytes, amount_nanos: int) -> int:
        """A run of the chat ended that costs so much; the part of it that is still to be charged.

        b"" is no chat in particular.
        """
        if not chat:
            return amount_nanos
        before = self._charged.get(chat) or 0
        self._charged.put(chat, max(before, amount_nanos))
        return max(0, amount_nanos - before)
