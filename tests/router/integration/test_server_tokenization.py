"""Sessions that bring messages: through a real tokenizer service with the real vocabulary."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence

import pytest

from outrider.codec.shipped import shipped_table
from outrider.codec.tokens import TokenCoder
from outrider.cost import Cost
from outrider.models.chat import Message
from outrider.models.vocabulary import Vocabulary
from outrider.tokenization.rewriting import RewritingPolicy
from outrider.v1 import common_pb2, inference_pb2
from outrider.wire import cost_of, token_block_from_proto
from services.router.admission.pricing import Price
from services.router.upstream.tokenizers import TokenizerPool
from tests.router.integration.test_app import get
from tests.router.relay.mesh import commit, done, opening
from tests.router.replica import CODECS, Replica, running_replicas, running_router
from tests.tokenizer.running import MODEL, TokenizerUnderTest, running_tokenizer, successor


@pytest.fixture
async def tokenizer(vocabulary: Vocabulary) -> AsyncIterator[TokenizerUnderTest]:
    async with running_tokenizer(vocabulary, max_text_bytes=2000) as tokenizer:
        yield tokenizer


@pytest.fixture
async def replica(vocabulary: Vocabulary) -> AsyncIterator[Replica]:
    replica = Replica("a")
    replica.model, replica.digest = MODEL, vocabulary.digest
    async with running_replicas(replica):
        yield replica


def conversation(
    number: int, turns: Sequence[Message], *, prefixed: bool = False
) -> inference_pb2.SessionUp:
    messages = inference_pb2.PromptMessages(
        messages=[common_pb2.ChatMessage(role=m.role, content=m.content) for m in turns],
        prefixed=prefixed,
    )
    return inference_pb2.SessionUp(
        session=number, open=inference_pb2.OpenSession(messages=messages)
    )


def chat(number: int, content: str, role: str = "user") -> inference_pb2.SessionUp:
    return conversation(number, [Message(role, content)])


def prompt_of(opening: inference_pb2.OpenSession, vocabulary: Vocabulary) -> list[int]:
    coder = TokenCoder(vocabulary.digest, vocabulary.size, shipped_table(vocabulary.tokens_digest))
    return list(coder.decode(token_block_from_proto(opening.ids.tail), max_count=1000))


async def test_messages_reach_the_replica_as_the_templates_ids(
    tokenizer: TokenizerUnderTest, replica: Replica, vocabulary: Vocabulary
) -> None:
    prices = {"prices": (Price(1.0, 10.0, model=MODEL),), "currency": "USD"}
    async with running_router(
        replica, tokenizers=(tokenizer.address,), default_model=MODEL, **prices
    ) as router:
        edge = router.edge()
        await edge.send(chat(1, "Why is the sky blue?"))
        sent = await replica.hear("open")
        assert sent.open.WhichOneof("prompt") == "ids"
        assert sent.open.vocabulary_digest == vocabulary.digest
        assert sent.open.ids.tail.codec == CODECS[0], "a codec that the replica reads"
        expected = vocabulary.encode_chat([Message("user", "Why is the sky blue?")])
        assert prompt_of(sent.open, vocabulary) == expected
        replica.say(commit(sent.session))
        replica.say(done(sent.session))
        assert (await edge.hear("commit")).session == 1
        told = cost_of((await edge.hear("done")).done.usage)
        assert told == Cost(1000 * (len(expected) + 10), "USD")
        charged = rf"outrider_router_tenant_cost_total{{.*}} {told.amount_nanos / 1e9}\n"
        async with asyncio.timeout(60):
            while not re.search(charged, await get(router.ports.admin, "/metrics")):
                await asyncio.sleep(0.02)


ASK = Message("user", "Why is the sky blue?")
TALK = [Message(("user", "assistant")[n % 2], f"{n} of many words, " * 5) for n in range(20)]
POLICY = RewritingPolicy(
    system_prefix="Be Acme.",
    too_long="keep_turns",
    min_reply_tokens=64,
    omitted=" [{turns} omitted]",
)


async def test_who_makes_ids_of_messages_rewrites_them_as_its_operator_wants(
    replica: Replica, vocabulary: Vocabulary
) -> None:
    """The tokenizer's prefix, or that of the edge before it, never both; and what does not fit the
    replica's context is made shorter in either case. Ids are left alone."""
    replica.max_context_tokens = 256
    ours, theirs = Message("system", "Be Acme."), Message("system", "Be the edge's.")
    async with (
        running_tokenizer(vocabulary, rewriting=POLICY) as tokenizer,
        running_router(replica, tokenizers=(tokenizer.address,), default_model=MODEL) as router,
    ):
        edge = router.edge()
        for number, (turns, prefixed, prefix) in enumerate(
            (
                ([ASK], False, ours),
                ([theirs, ASK], True, theirs),
                ([*TALK, ASK], False, ours),
                ([theirs, *TALK, ASK], True, theirs),
            ),
            start=1,
        ):
            await edge.send(conversation(number, turns, prefixed=prefixed))
            sent = await replica.hear("open")
            prompt = prompt_of(sent.open, vocabulary)
            if len(turns) > 2:
                told = Message("user", TALK[0].content + " [16 omitted]")
                expected = [prefix, told, *TALK[17:], ASK]
                assert len(prompt) <= 256 - 64
            else:
                expected = [prefix, ASK]
            assert prompt == vocabulary.encode_chat(expected)
            replica.say(done(sent.session))
            await edge.hear("done")
        metrics = await tokenizer.admin("/metrics")
        assert "outrider_tokenization_shortened_chats_total 2.0" in metrics
        await edge.send(opening(9, model=MODEL, vocabulary_digest=replica.digest, tokens=255))
        assert (await replica.hear("open")).open.ids.tail.count == 255


async def test_bad_messages_fail_alone_with_the_tokenizers_reason(
    tokenizer: TokenizerUnderTest, replica: Replica
) -> None:
    async with running_router(
        replica, tokenizers=(tokenizer.address,), default_model=MODEL
    ) as router:
        edge = router.edge()
        expected = {1: "EMPTY_PROMPT", 2: "FRAME_TOO_LARGE", 3: "INVALID_REQUEST"}
        await edge.send(chat(1, ""))
        await edge.send(chat(2, "long " * 1000))
        await edge.send(chat(3, "hi", role="wizard"))
        unknown = chat(4, "hi")
        unknown.open.model = "x"
        await edge.send(unknown)
        errors = [await edge.hear("error") for _ in range(4)]
        expected[4] = "UNKNOWN_MODEL"
        assert {frame.session: frame.error.reason for frame in errors} == expected
        await edge.send(chat(5, "hi"))
        await replica.hear("open")


async def test_a_tokenizer_of_another_vocabulary_is_a_mismatch_that_names_both(
    tokenizer: TokenizerUnderTest, replica: Replica, vocabulary: Vocabulary
) -> None:
    replica.digest = b"\x09" * 32
    async with running_router(
        replica, tokenizers=(tokenizer.address,), default_model=MODEL
    ) as router:
        edge = router.edge()
        await edge.send(chat(1, "hi"))
        refusal = (await edge.hear("error")).error
        assert refusal.reason == "VOCABULARY_MISMATCH"
        assert vocabulary.digest.hex() in refusal.message
        assert replica.digest.hex() in refusal.message


async def test_while_a_vocabulary_is_replaced_messages_go_where_somebody_reads_their_ids(
    tokenizer: TokenizerUnderTest, replica: Replica, vocabulary: Vocabulary
) -> None:
    """The fleet has the new one on two of three replicas, and of two tokenizers one is replaced."""
    new = successor(vocabulary)
    renewed = [Replica("b"), Replica("c")]
    for one in renewed:
        one.model, one.digest = MODEL, new.digest
    async with running_replicas(*renewed), running_tokenizer(new) as next_tokenizer:
        for addresses, digest in (
            ((tokenizer.address, next_tokenizer.address), new.digest),
            ((tokenizer.address,), vocabulary.digest),
        ):
            async with running_router(
                *(replica, *renewed), tokenizers=addresses, default_model=MODEL
            ) as router:
                edge = router.edge()
                await edge.send(chat(1, "hi"))
                heard = [asyncio.create_task(one.received.get()) for one in (replica, *renewed)]
                done, waiting = await asyncio.wait(
                    heard, return_when=asyncio.FIRST_COMPLETED, timeout=60
                )
                for task in waiting:
                    task.cancel()
                (frame,) = [task.result() for task in done]
                assert frame.open.vocabulary_digest == digest
                assert done <= set(heard[1:] if digest == new.digest else heard[:1])


async def test_without_a_tokenizer_ids_are_served_and_messages_refused(replica: Replica) -> None:
    async with running_router(replica, default_model=MODEL) as router:
        edge = router.edge()
        await edge.send(chat(1, "hi"))
        refusal = (await edge.hear("error")).error
        assert refusal.reason == "UNAVAILABLE"
        assert "send token ids" in refusal.message
        await edge.send(opening(2, model=MODEL, vocabulary_digest=replica.digest))
        await replica.hear("open")


async def test_a_defect_fails_its_session_alone(
    tokenizer: TokenizerUnderTest, replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_router(
        replica, tokenizers=(tokenizer.address,), default_model=MODEL
    ) as router:
        edge = router.edge()
        with monkeypatch.context() as patch:
            patch.setattr(TokenizerPool, "encode", lambda self, request: 1 // 0)
            await edge.send(chat(1, "hi"))
            refusal = await edge.hear("error")
        assert (refusal.session, refusal.error.reason) == (1, "INTERNAL")
        await edge.send(chat(2, "hi"))
        await replica.hear("open")
