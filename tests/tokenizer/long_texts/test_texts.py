"""Texts of any size through the service and its worker processes, which are killed meanwhile."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from outrider.codec.tokens import TokenCoder
from outrider.models.vocabulary import Vocabulary
from outrider.rpc import from_rpc_error, make_channel
from outrider.testing import eventually, free_tcp_port
from outrider.tls import Role
from outrider.v1 import common_pb2, tokenizer_pb2, tokenizer_pb2_grpc
from outrider.wire import token_block_from_proto, token_block_to_proto
from tests.models import corpus
from tests.tls.issuing import Issuer
from tests.tokenizer.running import TokenizerUnderTest, running_tokenizer

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def coder(vocabulary: Vocabulary) -> TokenCoder:
    return TokenCoder(vocabulary.digest, vocabulary.size)


@pytest.fixture(scope="module")
def text() -> str:
    rng = random.Random(3)
    return "".join(rng.choice(corpus.ORDINARY) + rng.choice(" \n\t") for _ in range(8_000))


def requests(text: str, piece: int = 50_000) -> Iterator[tokenizer_pb2.TokenizeRequest]:
    for start in range(0, len(text), piece):
        yield tokenizer_pb2.TokenizeRequest(text=text[start : start + piece])


def to_count(text: str, piece: int = 50_000) -> Iterator[tokenizer_pb2.CountRequest]:
    for start in range(0, len(text), piece):
        yield tokenizer_pb2.CountRequest(text=text[start : start + piece])


def ids_of(coder: TokenCoder, block: common_pb2.TokenBlock) -> tuple[int, ...]:
    return coder.decode(token_block_from_proto(block), max_count=1 << 24)


def children() -> list[int]:
    """WorkerProcesses of this one that run, workers of a tokenizer service."""
    found = []
    for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        command = Path(f"/proc/{pid}/cmdline")
        if command.exists() and b"services.tokenizer.long_texts" in command.read_bytes():
            found.append(int(pid))
    return found


async def tokenize(
    service: TokenizerUnderTest, coder: TokenCoder, text: str
) -> AsyncIterator[list[int]]:
    async for answer in service.stub.Tokenize(requests(text)):
        yield list(ids_of(coder, answer.ids))


async def once_not_refused(service: TokenizerUnderTest, reason: str) -> None:
    """Ask until the service does not refuse for this reason any more."""
    while True:
        try:
            assert (await service.stub.Count(to_count("one two"))).count >= 2
            return
        except grpc.aio.AioRpcError as error:
            assert from_rpc_error(error).reason == reason
            await asyncio.sleep(0.05)


async def test_workers_are_killed_and_the_ids_stay_the_same(
    vocabulary: Vocabulary, coder: TokenCoder, text: str
) -> None:
    """Every few parts a worker dies by SIGKILL and is replaced; nothing is left at the end."""
    settings = {"part_chars": 4_000, "window_parts": 4}
    async with running_tokenizer(vocabulary, **settings) as service:
        ids: list[int] = []
        killed = set()
        num_blocks = 0
        async for block in tokenize(service, coder, text):
            ids += block
            num_blocks += 1
            if num_blocks % 12 == 0:
                victims = [pid for pid in children() if pid not in killed]
                for pid in victims[:1]:
                    os.kill(pid, signal.SIGKILL)
                    killed.add(pid)
        assert ids == vocabulary.encode(text)
        assert num_blocks > 30
        assert len(killed) >= 2
        await eventually(lambda: len(set(children()) - killed) == 2)
        count = await service.stub.Count(to_count(text))
        assert (count.count, count.vocabulary_digest) == (len(ids), vocabulary.digest)
    assert children() == []


async def test_nobody_joins_without_being_a_worker(vocabulary: Vocabulary, tmp_path: Path) -> None:
    issuer, port = Issuer(tmp_path), free_tcp_port()
    router = issuer.tls(Role.ROUTER)
    settings: dict[str, Any] = {"tls": issuer.config(Role.TOKENIZER), "caller": router}
    async with running_tokenizer(vocabulary, **settings, worker_port=port) as service:
        for address, caller, reason in (
            (f"127.0.0.1:{port}", router, "PERMISSION_DENIED"),
            # On the port of those that bring texts there is no such service, for anyone.
            (service.address, issuer.tls(Role.TOKENIZER_WORKER), "UNIMPLEMENTED"),
        ):
            async with make_channel(address, tls=caller, role=Role.TOKENIZER) as channel:
                stub = tokenizer_pb2_grpc.TokenizerWorkServiceStub(channel)
                # It says nothing: grpc.aio forgets a status that comes before a write
                # (github.com/grpc/grpc/issues/36066).
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await stub.Work().read()
                code = refused.value.code().name
                assert reason in (code, from_rpc_error(refused.value).reason)


async def test_without_a_port_for_workers_none_of_other_nodes_join(vocabulary: Vocabulary) -> None:
    async with running_tokenizer(vocabulary, worker_processes=0) as service:
        stub = tokenizer_pb2_grpc.TokenizerWorkServiceStub(service.channel)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Work(iter([])).read()
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_a_cancelled_text_is_forgotten(vocabulary: Vocabulary) -> None:
    settings = {"part_chars": 10_000, "window_parts": 3, "max_long_texts": 1}
    async with running_tokenizer(vocabulary, **settings) as service:

        async def endless() -> AsyncIterator[tokenizer_pb2.TokenizeRequest]:
            while True:
                yield tokenizer_pb2.TokenizeRequest(text="many words " * 10_000)

        call = service.stub.Tokenize(endless())
        first = await call.read()
        assert isinstance(first, tokenizer_pb2.TokenizeResponse)
        assert first.ids.count > 0
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await service.stub.Count(to_count("a"))
        assert from_rpc_error(refused.value).reason == "OVERLOADED"
        call.cancel()
        await once_not_refused(service, "OVERLOADED")


async def test_what_cannot_be_tokenized_is_refused(vocabulary: Vocabulary) -> None:
    settings = {"part_chars": 100, "max_part_chars": 1_000}
    async with running_tokenizer(vocabulary, **settings) as service:
        bad = {
            "EMPTY_PROMPT": [],
            "UNKNOWN_MODEL": [tokenizer_pb2.CountRequest(model="x", text="a")],
            "FRAME_TOO_LARGE": list(to_count("x" * 5_000)),
        }
        for reason, sent in bad.items():
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await service.stub.Count(iter(sent))
            assert from_rpc_error(refused.value).reason == reason
        assert (await service.stub.Count(to_count("x" * 1_000))).count > 0
        assert (await service.stub.Count(iter([tokenizer_pb2.CountRequest()]))).count == 0


async def test_ids_of_any_number_to_text(
    vocabulary: Vocabulary, coder: TokenCoder, text: str
) -> None:
    ids = vocabulary.encode(text)

    def blocks() -> Iterator[tokenizer_pb2.DetokenizeRequest]:
        for start in range(0, len(ids), 999):
            block = token_block_to_proto(coder.encode(ids[start : start + 999]))
            yield tokenizer_pb2.DetokenizeRequest(ids=block, vocabulary_digest=vocabulary.digest)

    async with running_tokenizer(vocabulary) as service:
        answers = [answer.text async for answer in service.stub.Detokenize(blocks())]
        assert "".join(answers) == vocabulary.decode(ids)
        wrong = tokenizer_pb2.DetokenizeRequest(vocabulary_digest=b"\x07" * 32)
        for sent, reason in (([wrong], "VOCABULARY_MISMATCH"), ([], "INVALID_REQUEST")):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await service.stub.Detokenize(iter(sent)).read()
            assert from_rpc_error(refused.value).reason == reason
