"""Finds out what a server can do, and that it serves the model that is meant, before it is used."""

from __future__ import annotations

import asyncio
import json
import re
from typing import TYPE_CHECKING, Any, Final

import structlog

from outrider.backoff import Backoff
from outrider.engines.turn.base import Ability, TurnEngineInfo, TurnRequest
from outrider.engines.turn.openai_server.completions import (
    VLLM_ABILITIES,
    CompletionStream,
    block_tokens_of,
    body_of,
    num_blocks_of,
)
from outrider.engines.turn.openai_server.config import OpenAiServerOptions
from outrider.engines.turn.openai_server.engine import COMPLETIONS, OpenAiServerEngine, refusal
from outrider.engines.turn.openai_server.http import HttpServer
from outrider.errors import (
    ConfigError,
    EngineError,
    InvalidSamplingError,
    ReplicaLostError,
    UnavailableError,
)
from outrider.sampling.params import SamplingParams

if TYPE_CHECKING:
    from outrider.models.vocabulary import Vocabulary

LEAST_VERSION: Final = (0, 11)
"""The first minor release of vLLM that has `structured_outputs`; `return_token_ids` came before. An
older one takes unknown fields without a word."""
_NUM_PROBED: Final = 1024
"""Ids, evenly spread over the vocabulary, that have to mean the same to the server."""
_BLOCK_TOKENS: Final = 16
_ANSWER_TIMEOUT_S: Final = 60.0
"""For the first request: a server may compile then."""

_log = structlog.get_logger()


async def open_server(options: OpenAiServerOptions, vocabulary: Vocabulary) -> OpenAiServerEngine:
    """Wait for the server to answer, and check it.

    Raises ConfigError for settings that do not fit it, UnavailableError if it does not answer
    within `start_timeout_s`, and EngineError for a server that cannot serve: one that does not say
    token ids, is too old, or has another vocabulary.
    """
    if not options.url:
        raise ConfigError("the engine openai-server needs server.url")
    server = await asyncio.to_thread(_server, options)
    probe = _Probe(server, options)
    await probe.wait()
    model, max_context_tokens = await probe.model()
    metrics = await probe.get("/metrics")
    version = await probe.version(metrics)
    await probe.check_vocabulary(model, vocabulary)
    has_priorities = await probe.reply(model)
    abilities = VLLM_ABILITIES | ({Ability.PRIORITY} if has_priorities else frozenset())
    info = TurnEngineInfo(
        name="openai-server",
        vocabulary_size=0,
        max_sessions=options.max_sessions,
        max_context_tokens=max_context_tokens,
        abilities=abilities,
        block_tokens=block_tokens_of(metrics) or _BLOCK_TOKENS,
        num_blocks=num_blocks_of(metrics),
        version=version,
    )
    return OpenAiServerEngine(
        server,
        info,
        model,
        answer_timeout_s=options.connect_timeout_s,
        silence_timeout_s=options.silence_timeout_s,
    )


def _server(options: OpenAiServerOptions) -> HttpServer:
    key = ""
    if options.key_file is not None:
        try:
            key = options.key_file.read_text("ascii").strip()
        except (OSError, ValueError) as error:
            raise ConfigError(f"server.key_file cannot be read: {error}") from error
        if not key.isprintable() or not key:
            raise ConfigError("server.key_file has to hold one key, in one line")
    return HttpServer(
        options.url, key=key, ca=options.ca, connect_timeout_s=options.connect_timeout_s
    )


class _Probe:
    """Questions to a server that is not used yet."""

    def __init__(self, server: HttpServer, options: OpenAiServerOptions) -> None:
        self._server = server
        self._options = options

    async def wait(self) -> None:
        """Until the server answers that it is healthy, or that there is no such path."""
        backoff = Backoff(first_s=0.2, max_s=5.0)
        why = "it does not answer"
        try:
            async with asyncio.timeout(self._options.start_timeout_s):
                while True:
                    try:
                        async with self._server.request("GET", "/health") as answer:
                            if answer.status in (200, 404):
                                return
                            why = f"its health is {answer.status}"
                    except ReplicaLostError as lost:
                        why = lost.message
                    _log.info("engine_server_awaited", server=self._server.name, why=why)
                    await asyncio.sleep(backoff.next_s())
        except TimeoutError as error:
            raise UnavailableError(f"the server {self._server.name} is not ready: {why}") from error

    async def get(self, path: str) -> bytes:
        """A document; empty if there is none."""
        async with asyncio.timeout(_ANSWER_TIMEOUT_S), self._server.request("GET", path) as answer:
            if answer.status in (401, 403):
                raise ConfigError("the engine's server refuses the key of server.key_file")
            return await answer.whole() if answer.status == 200 else b""

    async def model(self) -> tuple[str, int]:
        """The server's name of the model, and the longest context."""
        listed = _object(await self.get("/v1/models")).get("data")
        found = {
            str(it["id"]): it for it in (listed or ()) if isinstance(it, dict) and it.get("id")
        }
        name = self._options.model or next(iter(found), "")
        if name not in found or (not self._options.model and len(found) > 1):
            raise ConfigError(
                f"the server {self._server.name} serves {', '.join(found) or 'no model'}; name one "
                "in server.model"
            )
        longest = found[name].get("max_model_len")
        most = self._options.max_context_tokens or (longest if isinstance(longest, int) else 0)
        if not most:
            raise ConfigError(
                f"the server {self._server.name} does not say how long a context may be; set "
                "server.max_context_tokens"
            )
        return name, min(most, longest) if isinstance(longest, int) else most

    async def version(self, metrics: bytes) -> str:
        """What the server is. Raises EngineError if it is not known to keep trust groups apart."""
        said = str(_object(await self.get("/version")).get("version", ""))
        is_vllm = b"\nvllm:" in metrics
        if self._options.kind == "auto" and not is_vllm:
            raise EngineError(
                f"the server {self._server.name} does not show that it is vLLM, so nothing says "
                "that it keeps trust groups' cached prefixes apart (cache_salt); if it does, set "
                "server.kind to vllm"
            )
        numbers = re.match(r"(\d+)\.(\d+)", said)
        # Builds from a working tree have a version of their own, or none.
        if numbers and (0, 0) < (int(numbers[1]), int(numbers[2])) < LEAST_VERSION:
            raise EngineError(
                f"the server {self._server.name} is vLLM {said}; use 0.11 or a later one"
            )
        return f"vllm {said}".strip()

    async def check_vocabulary(self, model: str, vocabulary: Vocabulary) -> None:
        """Raises EngineError if ids mean other texts to the server."""
        ids = _probed_ids(vocabulary)
        asked = {"model": model, "tokens": ids}
        async with (
            asyncio.timeout(_ANSWER_TIMEOUT_S),
            self._server.request("POST", "/detokenize", asked) as answer,
        ):
            said = _object(await answer.whole()).get("prompt") if answer.status == 200 else None
        if said is None:
            _log.warning("engine_vocabulary_unchecked", server=self._server.name)
        elif said != vocabulary.decode(ids):
            raise EngineError(
                f"the model {model} of the server {self._server.name} has another vocabulary than "
                "the replica's model; set `model` to the same one"
            )

    async def reply(self, model: str) -> bool:
        """Whether the server's queue knows priorities. Raises EngineError if its replies are of no
        use."""
        try:
            await self._reply(model, has_priorities=True)
        except InvalidSamplingError:
            await self._reply(model, has_priorities=False)
            return False
        return True

    async def _reply(self, model: str, *, has_priorities: bool) -> None:
        turn = TurnRequest(1, (1, 2, 3), SamplingParams(), max_tokens=2, salt=b"probe")
        body = body_of(turn, model, has_priorities=has_priorities)
        stream, num_ids = CompletionStream(), 0
        async with (
            asyncio.timeout(_ANSWER_TIMEOUT_S),
            self._server.request("POST", COMPLETIONS, body) as answer,
        ):
            if answer.status != 200:
                raise await refusal(answer)
            async for line in answer.lines():
                piece = stream.read(line)
                num_ids += len(piece.ids) if piece is not None else 0
        if num_ids != 2:
            raise EngineError(
                f"the server {self._server.name} said {num_ids} token ids of a reply of 2"
            )


def _probed_ids(vocabulary: Vocabulary) -> list[int]:
    """Ids of whole characters: how halves are shown is the decoder's choice."""
    ids = range(0, vocabulary.size, max(1, vocabulary.size // _NUM_PROBED))
    return [it for it in ids if not vocabulary.is_special(it) and _is_text(vocabulary, it)]


def _is_text(vocabulary: Vocabulary, id: int) -> bool:
    try:
        vocabulary.text_bytes(id).decode()
    except UnicodeDecodeError:
        return False
    return True


def _object(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
