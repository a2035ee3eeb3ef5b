"""Requests sent twice with the same key: one run, one reply, and one stream that has it."""

from __future__ import annotations

import pytest

from outrider.client import ChatResult, Client
from outrider.errors import NoReplicaError, OutriderError
from outrider.v1 import common_pb2, inference_pb2
from tests.edge.integration.running import REPLY, Running
from tests.edge.integration.trouble import start, whole


async def ask(client: Client, key: str, question: str = "hello") -> ChatResult:
    messages = [{"role": "user", "content": question}]
    async with client.chat(messages, idempotency_key=key) as chat:
        return await chat.result()


async def test_the_same_request_with_the_same_key_has_one_reply(
    mesh: Running, client: Client
) -> None:
    first = await ask(client, "k")
    async with mesh.client(client_secret=client.secret) as other:
        second = await ask(other, "k")
    assert (second.text, second.ids, second.usage) == (first.text, first.ids, first.usage)
    assert second.text == REPLY
    assert len(mesh.region.opened) == 1
    assert (await ask(client, "another")).text == REPLY
    assert len(mesh.region.opened) == 2


async def test_a_key_is_for_one_request(mesh: Running, client: Client) -> None:
    mesh.region.hold(6)
    first = await start(client, idempotency_key="k")
    for _ in range(2):
        with pytest.raises(OutriderError, match="new key") as caught:
            await ask(client, "k", "something else")
        assert caught.value.reason == "KEY_REUSED"
        mesh.region.gate.set()
        await whole(first)  # unharmed; then, the same once it is over
    assert len(mesh.region.opened) == 1


async def test_the_same_request_while_it_runs_moves_to_the_newer_stream(
    mesh: Running, client: Client
) -> None:
    mesh.region.hold(6)
    older = await start(client, idempotency_key="k")
    newer = await start(client, idempotency_key="k")
    with pytest.raises(OutriderError, match="another stream") as caught:
        await older.result()
    assert caught.value.reason == "DUPLICATE_SESSION"
    mesh.region.gate.set()
    assert (await newer.result()).text == REPLY
    assert len(mesh.region.opened) == 1


async def test_an_older_stream_that_is_not_read_costs_the_newer_one_nothing(
    mesh: Running, client: Client
) -> None:
    mesh.region.hold(6)
    await start(client, idempotency_key="k")
    for connection in mesh.edge.listener.connections:
        for stream in connection.native._streams.values():
            stream._max_unsent_bytes = 0  # whatever is sent now is too much
    newer = await start(client, idempotency_key="k")
    mesh.region.gate.set()
    assert (await newer.result()).text == REPLY
    assert len(mesh.region.opened) == 1


async def test_what_failed_or_was_cancelled_may_run_again(mesh: Running, client: Client) -> None:
    mesh.region.error = NoReplicaError("none")
    with pytest.raises(NoReplicaError):
        await ask(client, "k")
    mesh.region.error = None
    mesh.region.stop_after = 4
    chat = await start(client, idempotency_key="k")
    chat.cancel()
    assert (await chat.result()).finish_reason == "cancelled"
    mesh.region.stop_after = None
    assert (await ask(client, "k")).text == REPLY
    assert len(mesh.region.opened) == 3


async def test_what_its_deadline_cut_off_may_run_again(mesh: Running, client: Client) -> None:
    def cut_off(frame: inference_pb2.SessionDown) -> None:
        if frame.HasField("done"):
            frame.done.finish_reason = common_pb2.FINISH_REASON_DEADLINE

    mesh.region.mangle = cut_off
    assert (await ask(client, "k")).finish_reason == "deadline"
    mesh.region.mangle = lambda frame: None
    assert (await ask(client, "k")).finish_reason == "stop"
    assert len(mesh.region.opened) == 2
