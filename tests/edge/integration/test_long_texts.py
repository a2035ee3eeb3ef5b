"""Texts whose ids are asked for, over HTTP and by the client: a tokenizer service tokenizes long
ones, or the edge itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from outrider.errors import (
    DrainingError,
    InvalidRequestError,
    PromptTooLongError,
    UnknownModelError,
)
from outrider.models.vocabulary import Vocabulary
from outrider.testing import eventually, free_tcp_port
from outrider.tokenizer_client import LONG_TEXTS, LongTextsConfig
from services.tokenizer.vocabularies import ServedVocabulary
from tests.edge.integration.http_client import plain, serving_http
from tests.edge.integration.region import small_vocabulary
from tests.edge.integration.running import REPLY, Running, running
from tests.mesh import MODEL
from tests.test_tokenizer_client import hanging, service_with_a_worker

TEXT = "Words, 12 numbers and lines.\n" * 100


def handed(*tokenizers: str) -> LongTextsConfig:
    return LongTextsConfig(tokenizers=tokenizers, min_chars=1_000, timeout_s=60.0)


async def ids_of(client: Any, prompt: str) -> list[int]:
    answer = await client.post("/tokenize", json={"prompt": prompt})
    assert answer.status_code == 200, answer.text
    return list(answer.json()["tokens"])


def done_by(mesh: Running, who: str) -> float:
    sample = mesh.metrics.registry.get_sample_value
    return sample(f"{LONG_TEXTS}_total", {"tokenized_by": who}) or 0.0


@asynccontextmanager
async def edge_before(
    vocabulary: Vocabulary, folder: Path, long_texts: LongTextsConfig
) -> AsyncIterator[tuple[Running, Any]]:
    settings: dict[str, Any] = {"long_texts": long_texts, "max_context_tokens": 1 << 14}
    async with serving_http(vocabulary, folder, **settings) as mesh, plain(mesh) as client:
        yield mesh, client


async def test_a_service_tokenizes_them_while_it_is_there_and_the_edge_without(
    tmp_path: Path,
) -> None:
    vocabulary = small_vocabulary()
    expected = vocabulary.encode(TEXT)
    served: Any = [ServedVocabulary.of(MODEL, vocabulary)]
    async with service_with_a_worker(served) as service:
        long_texts = handed(service.address)
        async with edge_before(vocabulary, tmp_path, long_texts) as (mesh, client):
            await eventually(lambda: mesh.edge._long_texts.takes(1_000))
            assert await ids_of(client, TEXT) == expected
            assert done_by(mesh, "service") == 1
            assert await ids_of(client, TEXT[:900]) == expected[:900], "a short one"
            control = await ids_of(client, TEXT + "<|im_end|>")
            assert control == [*expected, vocabulary.token_id("<|im_end|>")], "no plain text"
            assert done_by(mesh, "service") == 1 and done_by(mesh, "process") == 0
            await mesh.settled()


async def test_prompts_begin_with_their_token_whoever_tokenizes(tmp_path: Path) -> None:
    vocabulary = small_vocabulary(adds_bos=True)
    begin = vocabulary.token_id("<|im_start|>")
    served: Any = [ServedVocabulary.of(MODEL, vocabulary)]
    async with service_with_a_worker(served) as service:
        long_texts = handed(service.address)
        async with edge_before(vocabulary, tmp_path, long_texts) as (mesh, client):
            await eventually(lambda: mesh.edge._long_texts.takes(1_000))
            for text in (TEXT, "short"):
                expected = [begin, *vocabulary.encode(text)]
                assert await ids_of(client, text) == expected
                assert await ids_of(client, f"<|im_start|>{text}") == expected, "as it is"
                plain = {"prompt": text, "add_special_tokens": False}
                answer = await client.post("/tokenize", json=plain)
                assert answer.json()["tokens"] == expected[1:]
            assert done_by(mesh, "service") == 2
            await mesh.settled()


async def test_without_a_service_the_edge_answers_the_same(tmp_path: Path) -> None:
    vocabulary = small_vocabulary()
    long_texts = handed(f"127.0.0.1:{free_tcp_port()}")
    async with edge_before(vocabulary, tmp_path, long_texts) as (mesh, client):
        await eventually(lambda: mesh.edge._long_texts.takes(1_000))
        for _ in range(4):
            assert await ids_of(client, TEXT) == vocabulary.encode(TEXT)
        assert done_by(mesh, "process") == 4 and done_by(mesh, "service") == 0
        await mesh.settled()


async def test_more_tokens_than_the_model_takes_are_refused_whoever_counts(
    tmp_path: Path,
) -> None:
    vocabulary = small_vocabulary()
    served: Any = [ServedVocabulary.of(MODEL, vocabulary)]
    long = TEXT * 6
    said = []
    async with service_with_a_worker(served) as service:
        said.append(await refusal(tmp_path / "with", vocabulary, long, service.address))
    said.append(await refusal(tmp_path / "without", vocabulary, long))
    assert said[0] == said[1]


async def refusal(folder: Path, vocabulary: Vocabulary, prompt: str, *tokenizers: str) -> str:
    async with edge_before(vocabulary, folder, handed(*tokenizers)) as (mesh, client):
        await eventually(lambda: mesh.edge._long_texts.takes(1_000) == bool(tokenizers))
        answer = await client.post("/tokenize", json={"prompt": prompt})
        assert answer.status_code == 400
        assert done_by(mesh, "service") == len(tokenizers)
        await mesh.settled()
        return str(answer.json()["error"]["message"])


async def test_a_client_asks_for_ids(tmp_path: Path) -> None:
    vocabulary = small_vocabulary()
    served: Any = [ServedVocabulary.of(MODEL, vocabulary)]
    async with service_with_a_worker(served) as service:
        settings = {"long_texts": handed(service.address), "max_context_tokens": 1 << 14}
        async with (
            running(vocabulary, tmp_path, REPLY, **settings) as mesh,
            mesh.client() as client,
        ):
            await eventually(lambda: mesh.edge._long_texts.takes(1_000))
            long, short = await asyncio.gather(
                client.tokenize(TEXT), client.tokenize("a<|im_end|>")
            )
            assert list(long.ids) == vocabulary.encode(TEXT)
            assert (long.model, long.vocabulary_digest) == (MODEL, vocabulary.digest)
            assert list(short.ids) == [*vocabulary.encode("a"), vocabulary.token_id("<|im_end|>")]
            assert done_by(mesh, "service") == 1
            with pytest.raises(PromptTooLongError, match="17400"):
                await client.tokenize(TEXT * 6)
            with pytest.raises(PromptTooLongError, match="send parts"):
                await client.tokenize("x" * (1 << 20))
            with pytest.raises(InvalidRequestError):
                await client.tokenize("\ud800")
            with pytest.raises(UnknownModelError):
                await client.tokenize("a", model="gpt-9")
            await mesh.settled()


async def test_an_answer_that_would_lie_unread_is_refused(tmp_path: Path) -> None:
    """No more than a client may leave unread of a chat."""
    vocabulary = small_vocabulary()
    settings = {"max_unsent_bytes": 4_096, "max_context_tokens": 1 << 14}
    async with running(vocabulary, tmp_path, REPLY, **settings) as mesh, mesh.client() as client:
        assert len((await client.tokenize("x" * 2_000)).ids) == 2_000
        with pytest.raises(PromptTooLongError, match="over HTTP"):
            await client.tokenize("x" * 5_000)
        await mesh.settled()


async def test_a_client_that_leaves_gives_its_question_up(tmp_path: Path) -> None:
    vocabulary = small_vocabulary()
    async with hanging() as (service, address):
        async with running(vocabulary, tmp_path, REPLY, long_texts=handed(address)) as mesh:
            async with mesh.client() as client:
                await eventually(lambda: mesh.edge._long_texts.takes(1_000))
                question = asyncio.create_task(client.tokenize(TEXT))
                await eventually(lambda: service.num_texts == 1)
                question.cancel()
                await asyncio.gather(question, return_exceptions=True)
                services = mesh.edge._long_texts._services
                await eventually(lambda: services[address].num_in_flight == 0)
                assert mesh.edge.telemetry.num_chats == 0


async def test_an_edge_that_stops_answers_what_was_asked_before(tmp_path: Path) -> None:
    """As it does over HTTP, and as chats end."""
    vocabulary = small_vocabulary()
    async with AsyncExitStack() as slow:
        service, address = await slow.enter_async_context(hanging())
        settings: dict[str, Any] = {"long_texts": handed(address), "max_context_tokens": 1 << 14}
        settings["drain_s"] = 60.0
        async with (
            running(vocabulary, tmp_path, REPLY, **settings) as mesh,
            mesh.client() as client,
        ):
            await eventually(lambda: mesh.edge._long_texts.takes(1_000))
            question = asyncio.create_task(client.tokenize(TEXT))
            await eventually(lambda: service.num_texts == 1)
            stopping = asyncio.create_task(mesh.edge.stop())
            await eventually(lambda: mesh.edge.listener.is_draining)
            with pytest.raises(DrainingError):
                await client.tokenize("a")
            await slow.aclose()  # the edge tokenizes the text itself
            assert list((await question).ids) == vocabulary.encode(TEXT)
            await stopping
