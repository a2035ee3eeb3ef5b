"""A turn engine behind a server that speaks OpenAI's API as vLLM does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Final

from outrider.engines.turn.base import (
    Ability,
    PrefixEvent,
    TurnEngineInfo,
    TurnLoad,
    TurnPiece,
    TurnRequest,
)
from outrider.engines.turn.openai_server.completions import (
    CompletionStream,
    body_of,
    error_of,
    load_of,
)
from outrider.engines.turn.openai_server.http import Answer, HttpServer
from outrider.errors import EngineError, OutriderError, ReplicaLostError

COMPLETIONS: Final = "/v1/completions"
_MAX_UNANSWERED: Final = 5
"""Questions about the load in a row that may go unanswered: a server that computes a long prompt
is late, too."""


class OpenAiServerEngine:
    """Each reply is a streamed request; closing its connection aborts it."""

    def __init__(
        self,
        server: HttpServer,
        info: TurnEngineInfo,
        model: str,
        *,
        answer_timeout_s: float,
        silence_timeout_s: float,
    ) -> None:
        """`model` is the server's name of it."""
        self.info = info
        self._server = server
        self._model = model
        self._answer_timeout_s = answer_timeout_s
        self._silence_timeout_s = silence_timeout_s
        self._num_unanswered = 0
        self._is_closed = False

    async def reply(self, request: TurnRequest) -> AsyncGenerator[TurnPiece, None]:
        """TurnEngine.reply."""
        if self._is_closed:
            raise ReplicaLostError("the engine was closed; open the session on another replica")
        has_priorities = Ability.PRIORITY in self.info.abilities
        body = body_of(request, self._model, has_priorities=has_priorities)
        stream = CompletionStream(request.sampling.num_logprobs)
        asked = self._server.request("POST", COMPLETIONS, body, silence_s=self._silence_timeout_s)
        async with asked as answer:
            if answer.status != 200:
                raise await refusal(answer)
            async for line in answer.lines():
                piece = stream.read(line)
                if piece is not None:
                    yield piece
                    if piece.finish is not None:
                        return
        # Its process died, or a proxy before it cut the stream off.
        raise ReplicaLostError(
            f"the server {self._server.name} ended a reply in the middle; open the session on "
            "another replica"
        )

    async def load(self) -> TurnLoad | None:
        """TurnEngine.load."""
        if self._is_closed:
            raise ReplicaLostError("the engine was closed; open the session on another replica")
        try:
            async with asyncio.timeout(self._answer_timeout_s):
                async with self._server.request("GET", "/metrics") as answer:
                    found = load_of(await answer.whole()) if answer.status == 200 else None
        except TimeoutError as error:
            self._num_unanswered += 1
            if self._num_unanswered < _MAX_UNANSWERED:
                raise EngineError("the engine's server did not answer in time") from error
            raise ReplicaLostError(
                f"the server {self._server.name} does not answer; open the session on another "
                "replica"
            ) from error
        self._num_unanswered = 0
        return found

    async def prefix_events(self) -> AsyncIterator[PrefixEvent]:
        """TurnEngine.prefix_events: this API has none."""
        none: tuple[PrefixEvent, ...] = ()
        for event in none:
            yield event

    async def close(self) -> None:
        """TurnEngine.close."""
        self._is_closed = True


async def refusal(answer: Answer) -> OutriderError:
    """The error that an answer reports."""
    text = await answer.whole()
    try:
        said: object = json.loads(text)
    except ValueError:
        said = text[:300].decode(errors="replace")
    return error_of(answer.status, said)
