"""An HTTP server's replies, recorded byte by byte, and a server that gives them again.

`tests/engines/turn/test_vllm.py` records what the contract's tests say to a real server (with
OUTRIDER_RECORD_EXCHANGE=1), `tests/engines/turn/test_openai_server.py` runs them on the record.
"""

from __future__ import annotations

import asyncio
import gzip
import json
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

RECORD: Final = Path(__file__).with_name("vllm_exchange.json.gz")
_LIMIT: Final = 1 << 22


@dataclass
class Answer:
    """To one request."""

    data: str
    """Head and body, as Latin-1."""
    is_whole: bool
    """Otherwise the client closed the connection first."""


@dataclass
class Exchange:
    """Answers by request, in order."""

    answers: dict[str, list[Answer]] = field(default_factory=lambda: defaultdict(list))

    @classmethod
    def load(cls, path: Path = RECORD) -> Exchange:
        exchange = cls()
        for key, answers in json.loads(gzip.decompress(path.read_bytes())).items():
            exchange.answers[key] = [Answer(*it) for it in answers]
        return exchange

    def save(self, path: Path = RECORD) -> None:
        lists = {
            key: [(it.data, it.is_whole) for it in answers] for key, answers in self.answers.items()
        }
        text = json.dumps(lists, indent=0, sort_keys=True).encode()
        path.write_bytes(gzip.compress(text, mtime=0))

    def add(self, key: str, answer: Answer) -> None:
        """Of documents that change all the time the first answer alone."""
        if not key.startswith("GET") or not self.answers[key]:
            self.answers[key].append(answer)


async def _request(reader: asyncio.StreamReader) -> tuple[bytes, str]:
    """A whole request, and what it asks for: method, path, body."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(
        (
            int(line.partition(b":")[2])
            for line in head.split(b"\r\n")
            if line.lower().startswith(b"content-length")
        ),
        0,
    )
    body = await reader.readexactly(length)
    method, path, _ = head.decode("latin-1").split(" ", 2)
    return head + body, f"{method} {path} {body.decode()}"


@asynccontextmanager
async def recording(port: int) -> AsyncIterator[tuple[str, Exchange]]:
    """The address of a proxy before the server at `port`, and what passes through it."""
    exchange = Exchange()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data, is_whole = b"", False
        there, sending = await asyncio.open_connection("127.0.0.1", port, limit=_LIMIT)
        asked, key = await _request(reader)
        sending.write(asked)
        gone = asyncio.ensure_future(reader.read())
        try:
            while not is_whole:
                reading = asyncio.ensure_future(there.read(1 << 16))
                await asyncio.wait((gone, reading), return_when=asyncio.FIRST_COMPLETED)
                if gone.done():
                    reading.cancel()
                    break
                piece = reading.result()
                is_whole = not piece
                data += piece
                with suppress(OSError):
                    writer.write(piece)
                    await writer.drain()
            exchange.add(key, Answer(data.decode("latin-1"), is_whole))
        finally:
            gone.cancel()
            sending.close()
            writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0, limit=_LIMIT) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", exchange


@asynccontextmanager
async def replaying(exchange: Exchange) -> AsyncIterator[str]:
    """The address of a server that answers as recorded; the last answer again and again."""
    given: dict[str, int] = defaultdict(int)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            _, key = await _request(reader)
            answers = exchange.answers.get(key)
            if not answers:
                why = f"not recorded: {key}".encode()
                writer.write(b"HTTP/1.1 500 Unknown\r\nConnection: close\r\n\r\n" + why)
                return
            answer = answers[min(given[key], len(answers) - 1)]
            given[key] += 1
            writer.write(answer.data.encode("latin-1"))
            if not answer.is_whole:
                await reader.read()  # until the client has enough
        except (OSError, asyncio.IncompleteReadError):
            return
        finally:
            writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0, limit=_LIMIT) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
