"""`python -m tests.tokenizer.long_texts.lockstep ADDRESS TEXT IDS VOCABULARY CERTIFICATE KEY CA`:
tokenizes a file by a service, in the vocabulary of a folder, and writes the ids (native uint32). It
reads a line of its input after each block that it gets, whose number is a line of its output, and
goes on without where its input has ended. The last line says how many seconds it took."""

from __future__ import annotations

import asyncio
import sys
from array import array
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

from outrider.codec.tokens import TokenCoder
from outrider.models.vocabulary import Vocabulary
from outrider.rpc import make_channel
from outrider.tls import Role, Tls, TlsConfig
from outrider.v1 import tokenizer_pb2, tokenizer_pb2_grpc
from outrider.wire import token_block_from_proto

PIECE_CHARS = 50_000


def requests(text: str, digest: bytes) -> Iterator[tokenizer_pb2.TokenizeRequest]:
    for begin in range(0, len(text), PIECE_CHARS):
        yield tokenizer_pb2.TokenizeRequest(
            text=text[begin : begin + PIECE_CHARS], vocabulary_digest=digest
        )


async def tokenize(address: str, tls: Tls, text: str, vocabulary: Vocabulary) -> array[int]:
    coder = TokenCoder(vocabulary.digest, vocabulary.size)
    blocks = []
    begun = perf_counter()
    async with make_channel(address, tls=tls, role=Role.TOKENIZER) as channel:
        stub: tokenizer_pb2_grpc.TokenizerServiceAsyncStub
        stub = tokenizer_pb2_grpc.TokenizerServiceStub(channel)
        is_led = True
        async for answer in stub.Tokenize(requests(text, vocabulary.digest)):
            blocks.append(answer.ids)
            print(len(blocks), flush=True)
            if is_led:
                is_led = bool(await asyncio.to_thread(sys.stdin.readline))
    print(perf_counter() - begun, flush=True)
    found = array("I")
    for block in blocks:
        found.extend(coder.decode(token_block_from_proto(block), max_count=1 << 24))
    return found


def main(address: str, *files: Path) -> None:
    text, ids, vocabulary, certificate, key, ca = files
    tls = Tls.open(TlsConfig(certificate, key, ca), Role.ROUTER)
    words = Vocabulary.load(vocabulary)
    found = asyncio.run(tokenize(address, tls, text.read_bytes().decode(), words))
    ids.write_bytes(found.tobytes())


if __name__ == "__main__":
    main(sys.argv[1], *map(Path, sys.argv[2:]))
