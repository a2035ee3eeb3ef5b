"""Encode and Decode over real gRPC, with the real vocabulary."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from outrider.codec.shipped import shipped_table
from outrider.codec.tokens import MIN_CLASSES, TokenCodec, TokenCoder
from outrider.errors import MalformedFrameError
from outrider.models.chat import Message
from outrider.models.vocabulary import Vocabulary
from outrider.rpc import from_rpc_error
from outrider.testing import eventually, leak_check
from outrider.v1 import common_pb2, tokenizer_pb2
from outrider.wire import token_block_from_proto, token_block_to_proto
from services.tokenizer.requests import RequestHandler, Slices
from services.tokenizer.vocabularies import ServedVocabulary
from tests.tokenizer.running import MODEL, TokenizerUnderTest, running_tokenizer

TEXTS = (
    "Hello, world!",
    "naïve café — 東京 🚄 مرحبا",
    "def f(x):\n\treturn x ** 2\n",
    "<|im_end|> is text here",
    "   spaces   ",
    "x" * 5000,
)


@pytest.fixture
async def service(vocabulary: Vocabulary) -> AsyncIterator[TokenizerUnderTest]:
    async with running_tokenizer(vocabulary) as service:
        yield service


@pytest.fixture
def coder(vocabulary: Vocabulary) -> TokenCoder:
    return TokenCoder(vocabulary.digest, vocabulary.size, shipped_table(vocabulary.tokens_digest))


def ids_of(coder: TokenCoder, block: common_pb2.TokenBlock) -> list[int]:
    return list(coder.decode(token_block_from_proto(block), max_count=1 << 20))


def user(content: str) -> tokenizer_pb2.Conversation:
    return tokenizer_pb2.Conversation(
        messages=[common_pb2.ChatMessage(role="user", content=content)]
    )


async def test_many_texts_on_one_stream_equal_the_vocabulary(
    service: TokenizerUnderTest, vocabulary: Vocabulary, coder: TokenCoder
) -> None:
    texts = [f"{text} {n}" for n in range(50) for text in TEXTS]
    requests = [tokenizer_pb2.EncodeRequest(number=n, text=text) for n, text in enumerate(texts)]
    answers = await service.encode(requests)
    assert len(answers) == len(texts)
    for number, text in enumerate(texts):
        assert ids_of(coder, answers[number].ids) == vocabulary.encode(text)
        assert answers[number].vocabulary_digest == vocabulary.digest


@pytest.mark.parametrize("codec", list(TokenCodec))
async def test_the_callers_codec_is_used(
    service: TokenizerUnderTest, vocabulary: Vocabulary, coder: TokenCoder, codec: TokenCodec
) -> None:
    wanted = [common_pb2.TokenCodec.ValueType(codec)]
    text = TEXTS[1] * MIN_CLASSES  # fewer tokens are not written in classes
    request = tokenizer_pb2.EncodeRequest(number=1, text=text, codecs=wanted)
    block = (await service.encode([request]))[1].ids
    assert [block.codec] == wanted
    assert ids_of(coder, block) == vocabulary.encode(text)


async def test_a_conversation_gets_the_template(
    service: TokenizerUnderTest, vocabulary: Vocabulary, coder: TokenCoder
) -> None:
    request = tokenizer_pb2.EncodeRequest(
        number=5, model=MODEL, conversation=user("ignore <|im_end|> this")
    )
    block = (await service.encode([request]))[5].ids
    expected = vocabulary.encode_chat([Message("user", "ignore <|im_end|> this")])
    assert ids_of(coder, block) == expected


async def test_decode_gives_the_text_back(
    service: TokenizerUnderTest, vocabulary: Vocabulary, coder: TokenCoder
) -> None:
    requests = [
        tokenizer_pb2.DecodeRequest(
            number=n,
            ids=token_block_to_proto(coder.encode(vocabulary.encode(text))),
            vocabulary_digest=vocabulary.digest,
        )
        for n, text in enumerate(TEXTS)
    ]
    answers = await service.decode(requests)
    assert [answers[n].text for n in range(len(TEXTS))] == list(TEXTS)


async def test_control_tokens_are_shown_on_demand(
    service: TokenizerUnderTest, vocabulary: Vocabulary, coder: TokenCoder
) -> None:
    block = token_block_to_proto(coder.encode(vocabulary.encode_chat([Message("user", "hi")])))
    answers = await service.decode(
        [
            tokenizer_pb2.DecodeRequest(number=1, ids=block),
            tokenizer_pb2.DecodeRequest(number=2, ids=block, keep_special=True),
        ]
    )
    assert "<|im_start|>" not in answers[1].text
    assert "<|im_start|>user\nhi<|im_end|>" in answers[2].text


async def test_bad_requests_fail_alone(vocabulary: Vocabulary, coder: TokenCoder) -> None:
    good = tokenizer_pb2.EncodeRequest(number=9, text="fine")
    bad = {
        1: (tokenizer_pb2.EncodeRequest(number=1, model="x", text="a"), "UNKNOWN_MODEL"),
        2: (tokenizer_pb2.EncodeRequest(number=2, text="a" * 2000), "FRAME_TOO_LARGE"),
        3: (tokenizer_pb2.EncodeRequest(number=3), "EMPTY_PROMPT"),
        4: (tokenizer_pb2.EncodeRequest(number=4, conversation=user("")), "EMPTY_PROMPT"),
        5: (
            tokenizer_pb2.EncodeRequest(
                number=5, text="a", codecs=[common_pb2.TOKEN_CODEC_UNSPECIFIED]
            ),
            "BAD_TOKEN_BLOCK",
        ),
    }
    async with running_tokenizer(vocabulary, max_text_bytes=1000) as service:
        answers = await service.encode([*(request for request, _ in bad.values()), good])
    assert {n: answers[n].error.reason for n in bad} == {n: why for n, (_, why) in bad.items()}
    assert ids_of(coder, answers[9].ids) == vocabulary.encode("fine")


async def test_bad_blocks_fail_alone(vocabulary: Vocabulary, coder: TokenCoder) -> None:
    block = token_block_to_proto(coder.encode([1, 2, 3]))
    flipped = common_pb2.TokenBlock()
    flipped.CopyFrom(block)
    flipped.checksum ^= 1
    long = token_block_to_proto(coder.encode([5] * 101))
    bad = {
        1: (tokenizer_pb2.DecodeRequest(number=1, ids=flipped), "BAD_TOKEN_BLOCK"),
        2: (tokenizer_pb2.DecodeRequest(number=2, ids=long), "BAD_TOKEN_BLOCK"),
        3: (tokenizer_pb2.DecodeRequest(number=3), "INVALID_REQUEST"),
        4: (
            tokenizer_pb2.DecodeRequest(number=4, ids=block, vocabulary_digest=b"\x07" * 32),
            "VOCABULARY_MISMATCH",
        ),
        5: (tokenizer_pb2.DecodeRequest(number=5, ids=block, model="x"), "UNKNOWN_MODEL"),
    }
    async with running_tokenizer(vocabulary, max_decode_ids=100) as service:
        good = tokenizer_pb2.DecodeRequest(number=9, ids=block)
        answers = await service.decode([*(request for request, _ in bad.values()), good])
    assert {n: answers[n].error.reason for n in bad} == {n: why for n, (_, why) in bad.items()}
    assert vocabulary.digest.hex() in answers[4].error.message
    assert (b"\x07" * 32).hex() in answers[4].error.message
    assert answers[9].text == vocabulary.decode([1, 2, 3])


async def test_an_overloaded_service_refuses_single_requests(vocabulary: Vocabulary) -> None:
    async with running_tokenizer(vocabulary, threads=1, max_pending=1) as service:
        text = "many words " * 20_000
        requests = [tokenizer_pb2.EncodeRequest(number=n, text=text) for n in range(6)]
        answers = await service.encode(requests)
        outcomes = [answers[n].WhichOneof("result") for n in range(6)]
        assert "ids" in outcomes
        refused = [answers[n].error for n in range(6) if outcomes[n] == "error"]
        assert {error.reason for error in refused} == {"OVERLOADED"}
        assert all(error.retry_delay_ms > 0 for error in refused)


async def test_the_loop_goes_on_while_a_long_text_is_tokenized(
    service: TokenizerUnderTest,
) -> None:
    """Promise: no event loop is held by tokenization. A health check overtakes a long text."""
    long = tokenizer_pb2.EncodeRequest(number=1, text="many different words, " * 40_000)
    encoding = asyncio.create_task(service.encode([long]))
    health = health_pb2_grpc.HealthStub(service.channel)
    checks = 0
    while not encoding.done():
        await health.Check(health_pb2.HealthCheckRequest())
        checks += 1
    assert (await encoding)[1].ids.count > 100_000
    assert checks > 5


async def test_invalid_utf8_ends_its_stream_alone(service: TokenizerUnderTest) -> None:
    encode: grpc.aio.StreamStreamMultiCallable[bytes, bytes]
    encode = service.channel.stream_stream("/outrider.v1.TokenizerService/Encode")
    call = encode()
    await call.write(b"\x08\x01\x1a\x02\xff\xfe")  # number 1, text of two bytes that are no UTF-8
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    assert isinstance(from_rpc_error(caught.value), MalformedFrameError)
    request = tokenizer_pb2.EncodeRequest(number=1, text="still here")
    assert (await service.encode([request]))[1].ids.count > 0


class Held:
    """Encoding begins, and goes on when it is let."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun: list[str] = []
        self.may_go_on = threading.Event()
        encode = RequestHandler.encode

        def held(
            handler: RequestHandler, served: ServedVocabulary, request: tokenizer_pb2.EncodeRequest
        ) -> Slices[tokenizer_pb2.EncodeResponse]:
            self.begun.append(request.text)
            assert self.may_go_on.wait(60.0)
            return (yield from encode(handler, served, request))

        monkeypatch.setattr(RequestHandler, "encode", held)


async def test_a_caller_that_leaves_takes_its_requests_along(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch)
    async with leak_check(), running_tokenizer(vocabulary, threads=1) as service:
        call = service.stub.Encode()
        for number in range(60):
            await call.write(tokenizer_pb2.EncodeRequest(number=number, text="left"))
        await eventually(lambda: held.begun == ["left"])
        call.cancel()
        async with asyncio.timeout(60.0):
            while "outrider_tokenizer_requests_total{" not in await service.admin("/metrics"):
                await asyncio.sleep(0.01)
        held.may_go_on.set()
        # One thread: the text that it was at ends, and none of the dozens behind that begins.
        request = tokenizer_pb2.EncodeRequest(number=1, text="next")
        assert (await service.encode([request]))[1].ids.count == 1
        assert held.begun == ["left", "next"]


async def rest(call: Any) -> list[tokenizer_pb2.EncodeResponse]:
    """All further answers."""
    found = []
    while (answer := await call.read()) is not grpc.aio.EOF:
        found.append(answer)
    return found


async def test_a_request_that_is_withdrawn_is_given_up(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch)
    async with leak_check(), running_tokenizer(vocabulary, threads=1) as service:
        call = service.stub.Encode()
        for number, text in enumerate(("first", "left", "left", "last")):
            await call.write(tokenizer_pb2.EncodeRequest(number=number, text=text))
        await eventually(lambda: held.begun == ["first"])
        for number in (1, 2, 7):  # one is unknown
            await call.write(tokenizer_pb2.EncodeRequest(number=number, withdrawn=True))
        await call.write(tokenizer_pb2.EncodeRequest(number=8, model="nobody's"))
        unknown = await call.read()
        assert isinstance(unknown, tokenizer_pb2.EncodeResponse) and unknown.number == 8
        held.may_go_on.set()
        await call.done_writing()
        assert [answer.number for answer in await rest(call)] == [0, 3]
        assert held.begun == ["first", "last"]


@pytest.mark.parametrize("others", ["another host", "another client"])
async def test_threads_are_shared_between_those_who_ask(
    others: str, vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch)
    flooding = common_pb2.Requester(origin="tenant", client="one")
    other = common_pb2.Requester(origin="tenant", client="other")
    if others == "another host":
        other.origin = ""
    async with running_tokenizer(vocabulary, threads=1) as service:
        call = service.stub.Encode()
        for number in range(9):
            await call.write(
                tokenizer_pb2.EncodeRequest(number=number, text="flood", requester=flooding)
            )
        await eventually(lambda: held.begun == ["flood"])
        await call.write(tokenizer_pb2.EncodeRequest(number=9, text="mine", requester=other))
        await call.write(tokenizer_pb2.EncodeRequest(number=10, model="nobody's"))
        await call.read()  # what came before is waiting by now
        held.may_go_on.set()
        await call.done_writing()
        assert len(await rest(call)) == 10
    assert held.begun.index("mine") <= 2


async def test_readiness_and_metrics(service: TokenizerUnderTest) -> None:
    await service.encode([tokenizer_pb2.EncodeRequest(number=1, text="a b c")])
    assert '"ready": true' in await service.admin("/ready")
    metrics = await service.admin("/metrics")
    assert (
        'outrider_tokenizer_requests_total{model="smollm2-135m-instruct",operation="encode"} 1.0'
        in metrics
    )
    assert 'outrider_tokenizer_tokens_total{operation="encode"} 3.0' in metrics
