"""Sends vocabularies piece by piece, and releases one whose reader is too slow: an open call holds
a message, not the tens of megabytes of a vocabulary with its caches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator

from outrider.errors import DeadlineError
from outrider.v1 import tokenizer_pb2
from services.tokenizer.served_models import Lease, ServedModels
from services.tokenizer.vocabularies import vocabulary_pieces

_Piece = tokenizer_pb2.GetVocabularyResponse


async def send_vocabulary(
    models: ServedModels, request: tokenizer_pb2.GetVocabularyRequest, max_s: float
) -> AsyncGenerator[_Piece, None]:
    """The messages of a vocabulary, for `received_vocabulary`. While the reader has one of them
    this does not run: a timer gives the vocabulary up.

    Raises what `ServedModels.using` raises, and DeadlineError for a reader that has not taken all
    after `max_s` seconds.
    """
    sending = _Sending(await models.lend(request.model, request.vocabulary_digest), max_s)
    try:
        while (piece := sending.next_piece()) is not None:
            yield piece
    finally:
        sending.end()


class _Sending:
    """The rest of a vocabulary to send, for at most `max_s`."""

    def __init__(self, lease: Lease, max_s: float) -> None:
        self._max_s = max_s
        self._pieces: Iterator[_Piece] | None = vocabulary_pieces(lease.served)
        self._lease: Lease | None = lease
        self._timer = asyncio.get_running_loop().call_later(max_s, self.end)

    def next_piece(self) -> _Piece | None:
        """None after the last one. Raises DeadlineError."""
        if self._pieces is None:
            raise DeadlineError(
                f"the vocabulary was not read within {self._max_s:g} s; ask for it again and read "
                "faster"
            )
        return next(self._pieces, None)

    def end(self) -> None:
        """Stop sending, and release the vocabulary."""
        self._timer.cancel()
        lease, self._lease, self._pieces = self._lease, None, None
        if lease is not None:
            lease.release()
