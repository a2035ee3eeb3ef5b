"""The official openai package, and curl, talk to a real edge."""

from __future__ import annotations

import asyncio
import json
import shutil
import ssl
import subprocess
from pathlib import Path
from typing import Any

import openai
import pytest

from outrider.errors import OverloadedError
from outrider.models.vocabulary import Vocabulary
from services.edge.http.config import HttpConfig
from tests.edge.integration.http_client import CHAT, KEY, official, plain, serving_http, url

REPLY = "a reply of some length"


async def test_a_chat_that_is_not_streamed(words: Vocabulary, tmp_path: Path) -> None:
    async with serving_http(words, tmp_path, REPLY) as mesh, official(mesh) as client:
        answer = await client.chat.completions.create(**CHAT, seed=5, max_completion_tokens=99)
        (choice,) = answer.choices
        assert choice.message.content == REPLY
        assert (choice.message.role, choice.finish_reason) == ("assistant", "stop")
        assert answer.model == "small" and answer.id.startswith("chatcmpl-")
        assert answer.usage is not None
        assert answer.usage.completion_tokens == len(REPLY) + 1
        assert answer.usage.prompt_tokens_details is not None
        assert choice.model_extra is not None and choice.model_extra["outrider"]["seed"] == 5
        (opened,) = mesh.region.opened
        assert (opened.sampling.seed, opened.sampling.max_tokens) == (5, 99)
        await mesh.settled()


async def test_a_chat_that_is_streamed(words: Vocabulary, tmp_path: Path) -> None:
    async with serving_http(words, tmp_path, REPLY) as mesh, official(mesh) as client:
        stream = await client.chat.completions.create(
            **CHAT, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        texts = [it.choices[0].delta.content for it in chunks if it.choices]
        assert "".join(filter(None, texts)) == REPLY
        assert chunks[0].choices[0].delta.role == "assistant"
        assert [it.choices[0].finish_reason for it in chunks if it.choices][-1] == "stop"
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == len(REPLY) + 1
        await mesh.settled()


async def test_the_first_tokens_come_before_the_others_are_made(
    words: Vocabulary, tmp_path: Path
) -> None:
    async with serving_http(words, tmp_path, REPLY) as mesh, official(mesh) as client:
        mesh.region.hold_at = 3
        mesh.region.gate.clear()
        stream = await client.chat.completions.create(**CHAT, stream=True)
        texts = []
        async for chunk in stream:
            texts.append(chunk.choices[0].delta.content or "")
            if "".join(texts) == REPLY[:3]:
                mesh.region.gate.set()
        assert "".join(texts) == REPLY


async def test_choices_come_interleaved_and_each_is_whole(
    words: Vocabulary, tmp_path: Path
) -> None:
    async with serving_http(words, tmp_path, REPLY) as mesh, official(mesh) as client:
        stream = await client.chat.completions.create(**CHAT, stream=True, n=3)
        texts = ["", "", ""]
        async for chunk in stream:
            choice = chunk.choices[0]
            texts[choice.index] += choice.delta.content or ""
        assert texts == [REPLY] * 3
        assert len({it.sampling.seed for it in mesh.region.opened}) == 3
        answer = await client.chat.completions.create(**CHAT, n=2)
        assert [it.message.content for it in answer.choices] == [REPLY] * 2
        await mesh.settled()


async def test_stop_strings_end_the_text(words: Vocabulary, tmp_path: Path) -> None:
    async with serving_http(words, tmp_path, REPLY) as mesh, official(mesh) as client:
        mesh.region.reply = tuple(words.encode("a reply of"))  # a replica ends there
        answer = await client.chat.completions.create(**CHAT, stop=["of"])
        (opened,) = mesh.region.opened
        assert list(opened.sampling.stop) == ["of"]
        assert answer.choices[0].message.content == "a reply "


async def test_completions_go_on_a_prompt_as_it_is(words: Vocabulary, tmp_path: Path) -> None:
    prompt = "<|im_start|>user\nhello<|im_end|>\n"
    async with serving_http(words, tmp_path, REPLY) as mesh, official(mesh) as client:
        answer = await client.completions.create(model="small", prompt=prompt, max_tokens=50)
        assert answer.choices[0].text == REPLY
        ids = [*_ids(words, prompt)]
        answer = await client.completions.create(model="small", prompt=ids, max_tokens=50)
        assert answer.choices[0].text == REPLY
        stream = await client.completions.create(
            model="small", prompt=prompt, max_tokens=50, stream=True
        )
        assert "".join([it.choices[0].text async for it in stream]) == REPLY
        prompts = {mesh.region.prompt(it) for it in mesh.region.opened}
        assert prompts == {tuple(ids)}, "text and ids are one prompt"
        with pytest.raises(openai.BadRequestError, match="outside the vocabulary"):
            await client.completions.create(model="small", prompt=[10**6])
        await mesh.settled()


def _ids(words: Vocabulary, prompt: str) -> list[int]:
    ids: list[int] = []
    for segment in words.raw_segments(prompt):
        is_control = segment.is_control
        ids += [words.control_id(segment.text)] if is_control else words.encode(segment.text)
    return ids


async def test_models_are_those_that_the_key_may_use(words: Vocabulary, tmp_path: Path) -> None:
    async with (
        serving_http(
            words, tmp_path, models=("small", "org/large"), anonymous_models=("small",)
        ) as mesh,
        official(mesh) as client,
    ):
        listed = await client.models.list()
        assert [it.id for it in listed.data] == ["small", "org/large"]
        model = await client.models.retrieve("org/large")
        assert model.model_extra is not None and model.model_extra["context_window"] > 0
        async with plain(mesh, key="") as anonymous:
            names = [it["id"] for it in (await anonymous.get("/v1/models")).json()["data"]]
            assert names == ["small"]
            hidden = await anonymous.get("/v1/models/org/large")
            unknown = await anonymous.get("/v1/models/org/other")
            assert hidden.status_code == unknown.status_code == 404
        with pytest.raises(openai.NotFoundError) as caught:
            await client.chat.completions.create(**CHAT | {"model": "nope"})
        assert caught.value.code == "model_not_found"


async def test_failures_before_the_first_token_have_a_status_of_their_own(
    words: Vocabulary, tmp_path: Path
) -> None:
    async with serving_http(words, tmp_path, REPLY) as mesh, official(mesh) as client:
        mesh.region.error = OverloadedError("the queue is full", retry_delay_ms=1500)
        for stream in (False, True):
            with pytest.raises(openai.RateLimitError) as caught:
                await client.chat.completions.create(**CHAT, stream=stream)
            headers = caught.value.response.headers
            assert (headers["retry-after"], headers["retry-after-ms"]) == ("2", "1500")
            assert headers["x-request-id"]
        await mesh.settled()


async def test_a_failure_after_that_ends_the_stream_with_an_error(
    words: Vocabulary, tmp_path: Path
) -> None:
    async with serving_http(words, tmp_path, REPLY, reopen_s=0.2) as mesh, official(mesh) as client:
        mesh.region.stop_after = 4
        stream = await client.chat.completions.create(**CHAT, stream=True)
        with pytest.raises(openai.APIError):
            async for chunk in stream:
                if chunk.choices[0].delta.content:
                    await mesh.edge.upstream.stop()
        await mesh.settled()


async def test_provisional_text_is_for_who_asks(words: Vocabulary, tmp_path: Path) -> None:
    async with serving_http(words, tmp_path, REPLY) as mesh, plain(mesh) as client:
        body: dict[str, Any] = CHAT | {"stream": True}
        without = await client.post("/v1/chat/completions", json=body)
        assert b"event:" not in without.content
        # The second time the edge has something to guess from.
        body["stream_options"] = {"provisional": True}
        text = (await client.post("/v1/chat/completions", json=body)).text
        assert text.endswith("data: [DONE]\n\n")


async def test_over_http2_and_tls(words: Vocabulary, tmp_path: Path) -> None:
    http = HttpConfig(port=0, tls="on")
    async with serving_http(words, tmp_path, REPLY, http=http) as mesh:
        trusted = ssl.create_default_context(cafile=str(mesh.ca))
        async with plain(mesh, verify=trusted, http2=True, http1=False) as client:
            for body in (CHAT, CHAT | {"stream": True}):
                answer = await client.post("/v1/chat/completions", json=body)
                assert answer.http_version == "HTTP/2"
                assert answer.status_code == 200
                assert answer.headers["alt-svc"].startswith(f'h3=":{mesh.ports.main}"')
            both = [client.post("/v1/chat/completions", json=CHAT) for _ in range(8)]
            for answer in await asyncio.gather(*both):
                assert answer.json()["choices"][0]["message"]["content"] == REPLY
            await mesh.settled()


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
async def test_curl(words: Vocabulary, tmp_path: Path) -> None:
    async with serving_http(words, tmp_path, REPLY) as mesh:
        done = await asyncio.to_thread(
            subprocess.run,
            (
                *("curl", "-sSN", f"{url(mesh)}/v1/chat/completions"),
                *("-H", f"Authorization: Bearer {KEY}", "-H", "Content-Type: application/json"),
                *("-d", json.dumps(CHAT | {"stream": True})),
            ),
            stdout=subprocess.PIPE,
        )
        assert done.returncode == 0
        assert done.stdout.endswith(b"data: [DONE]\n\n")
        await mesh.settled()
