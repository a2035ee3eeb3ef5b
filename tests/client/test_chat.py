"""A chat as its user sees it: iteration, results, errors, leaving."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outrider.client import (
    Client,
    Committed,
    Done,
    Message,
    ReconnectPolicy,
    SamplingParams,
    Timings,
)
from outrider.client import chat as client_chat
from outrider.client.client import DEFAULT_RECONNECT
from outrider.client.link import Link
from outrider.client.streams import Connection
from outrider.errors import (
    EmptyPromptError,
    InvalidRequestError,
    InvalidSamplingError,
    OverloadedError,
    PromptTooLongError,
    UnavailableError,
)
from outrider.sampling.grammar import json_schema
from outrider.testing import eventually
from outrider.wire import sampling_from_proto
from tests.edge.integration.running import REPLY, Running
from tests.edge.integration.trouble import ASK, said


async def test_the_result_needs_no_iteration(client: Client) -> None:
    async with client.chat(ASK) as chat:
        result = await chat.result()
        assert await chat.result() == result
        assert [event async for event in chat] == []
    assert result.text == REPLY
    assert result.usage.completion_tokens == len(result.ids)
    assert result.timings.tokens_per_s > 0
    assert result.replica_timings == Timings(1.0, 20.0, 30.0, 400.0)
    assert 0 < result.edge_timings.ttft_ms <= result.edge_timings.total_ms
    assert await chat.result() == result


async def test_the_result_after_half_an_iteration(client: Client) -> None:
    async with client.chat(ASK) as chat:
        async for event in chat:
            if isinstance(event, Committed):
                break
        assert (await chat.result()).text == REPLY


async def test_a_response_format_reaches_the_region_as_the_samplings_grammar(
    mesh: Running, client: Client
) -> None:
    schema = {"type": "object", "properties": {"b": {}, "a": {}}}
    wanted = {"type": "json_schema", "json_schema": {"name": "it", "schema": schema}}
    params = SamplingParams(max_tokens=500, seed=7)
    assert await said(client.chat(ASK, sampling=params, response_format=wanted)) == REPLY
    (opening,) = mesh.region.opened
    arrived = sampling_from_proto(opening.sampling)
    assert arrived == replace(params, grammar=json_schema(schema))
    with pytest.raises(InvalidSamplingError, match="response_format"):
        client.chat(ASK, response_format={"type": "yaml"})


async def test_an_error_is_raised_each_time_it_is_asked_for(client: Client) -> None:
    async with client.chat([]) as chat:
        with pytest.raises(EmptyPromptError):
            await anext(chat)
        with pytest.raises(EmptyPromptError):
            await chat.result()


async def test_a_chat_is_entered_once_before_anything_else(client: Client) -> None:
    chat = client.chat(ASK)
    with pytest.raises(InvalidRequestError, match="async with"):
        await anext(chat)
    with pytest.raises(InvalidRequestError, match="async with"):
        await chat.result()
    async with chat:
        with pytest.raises(InvalidRequestError, match="another"):
            await chat.__aenter__()
        assert (await chat.result()).text == REPLY


@pytest.mark.parametrize("reconnect", [DEFAULT_RECONNECT, None])
async def test_a_connection_that_is_lost_as_the_chat_is_to_be_sent_on_it(
    monkeypatch: pytest.MonkeyPatch, mesh: Running, reconnect: ReconnectPolicy | None
) -> None:
    """One in 0-RTT, whose edge turns out to be gone."""
    usable = Link.usable
    lost: list[Connection] = []

    async def lost_once(link: Link) -> Connection:
        connection = await usable(link)
        if not lost:
            lost.append(connection)
            connection.shut(error=UnavailableError("nothing answers"))
        return connection

    monkeypatch.setattr(Link, "usable", lost_once)
    async with mesh.client(reconnect=reconnect) as client:
        if reconnect is not None:
            assert await said(client.chat(ASK)) == REPLY
        else:
            with pytest.raises(UnavailableError, match="nothing answers"):
                async with client.chat(ASK):
                    raise AssertionError("sent on a lost connection")
    assert len(lost) == 1


async def test_leaving_early_cancels(mesh: Running, client: Client) -> None:
    mesh.region.stop_after = 3
    async with client.chat(ASK) as chat:
        await anext(chat)
    with pytest.raises(UnavailableError, match="left"):
        await chat.result()
    await eventually(lambda: mesh.region.cancelled == ["the client is gone"])


async def test_a_cancel_after_the_end_is_nothing(client: Client) -> None:
    async with client.chat(ASK) as chat:
        await chat.result()
        chat.cancel()
    async with client.chat(ASK) as chat:
        events = [event async for event in chat]
    assert isinstance(events[-1], Done)


async def test_events_nobody_reads_are_bounded(
    monkeypatch: pytest.MonkeyPatch, mesh: Running, client: Client
) -> None:
    monkeypatch.setattr(client_chat, "MAX_UNREAD_EVENTS", 5)
    mesh.region.block_tokens = 1
    async with client.chat(ASK, provisional=False) as chat:
        await eventually(lambda: chat._error is not None)
        assert len(chat._events) == 5
        with pytest.raises(OverloadedError):
            await chat.result()


@pytest.mark.parametrize(
    "options",
    [
        {"speculation": "maybe"},
        {"priority": "urgent"},
        {"deadline_ms": -1},
        {"idempotency_key": "\ud800"},
    ],
)
async def test_what_no_frame_can_hold(
    options: dict[str, object], mesh: Running, client: Client
) -> None:
    with pytest.raises(InvalidRequestError):
        async with client.chat(ASK, **options):  # type: ignore[arg-type]
            raise AssertionError("sent")
    with pytest.raises(InvalidRequestError):
        async with client.chat([Message("user", "\ud800")]):
            raise AssertionError("sent")
    with pytest.raises(PromptTooLongError, match=r"2,000,\d+ bytes; an edge takes 1,048,576"):
        async with client.chat([Message("user", "x" * 2_000_000)]):
            raise AssertionError("sent")
    assert mesh.region.opened == []
