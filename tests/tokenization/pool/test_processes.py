"""Other processes: chosen by load, and no chat is lost with one."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import threading
from array import array
from multiprocessing.context import SpawnProcess
from random import Random
from typing import Any

import pytest

from outrider.errors import InvalidRequestError
from outrider.fair_work.job_queue import JobClass
from outrider.fair_work.turns import Requester
from outrider.models.chat import Message
from outrider.models.tools import ToolCall, check_tools
from outrider.testing import eventually
from outrider.tokenization.backends.base import REFERENCE
from outrider.tokenization.encoder import CachingEncoder
from outrider.tokenization.pool import processes as other_process
from outrider.tokenization.pool.pool import TokenizationJob, TokenizationResult
from outrider.tokenization.pool.processes import MAX_PENDING, ProcessPool, two_choices
from outrider.tokenization.segment_cache import ContentClass
from tests.edge.integration.region import small_vocabulary
from tests.models import tool_templates


def test_the_less_loaded_of_two_is_chosen() -> None:
    rng = Random(1)
    assert two_choices([5], rng) == 0
    chosen = [two_choices([9, 0, 3, 7], rng) for _ in range(200)]
    assert 0 not in chosen and set(chosen) == {1, 2, 3}
    assert chosen.count(1) > chosen.count(2) > chosen.count(3)


def offer(
    processes: ProcessPool, messages: list[Message], tools: tuple[str, ...] = ()
) -> asyncio.Future[TokenizationResult]:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[TokenizationResult] = loop.create_future()
    answer = future.set_result
    job = TokenizationJob(messages, answer, JobClass.SHORT, Requester(), 0, loop, 0.0, tools=tools)

    def finish(done: TokenizationJob, outcome: TokenizationResult) -> None:
        loop.call_soon_threadsafe(done.deliver, outcome)

    if not processes.offer(job, finish):
        future.cancel()
    return future


def test_no_process_is_started_before_it_is_needed() -> None:
    processes = ProcessPool(small_vocabulary(), REFERENCE, num_processes=2, cache_bytes=1 << 20)
    processes.close()
    for member in processes.members:
        member.join(10.0)
        assert member.process is None and not member.is_ready


async def started(processes: ProcessPool) -> None:
    """The threads are saturated for the first time: this chat stays with them."""
    assert offer(processes, [Message("user", "hello")]).cancelled()
    await eventually(lambda: all(member.is_ready for member in processes.members))


async def test_a_process_that_cannot_be_started_takes_no_chats(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(process: SpawnProcess) -> None:
        raise BlockingIOError("no more processes")

    monkeypatch.setattr(SpawnProcess, "start", full)
    vocabulary, ask = small_vocabulary(), Message("user", "hello")
    processes = ProcessPool(vocabulary, REFERENCE, num_processes=1, cache_bytes=1 << 20)
    (member,) = processes.members
    for _ in range(MAX_PENDING):
        assert offer(processes, [ask]).cancelled()
    await asyncio.to_thread(member.join, 10.0)
    assert offer(processes, [ask]).cancelled()
    processes.close()
    member.join(10.0)
    assert not member._thread.is_alive()


@pytest.mark.e2e
async def test_chats_of_another_process_survive_its_death() -> None:
    vocabulary = small_vocabulary()
    processes = ProcessPool(vocabulary, REFERENCE, num_processes=1, cache_bytes=1 << 20)
    (member,) = processes.members
    asks = [Message("user", "hello"), Message("user", "wörld " * 20_000)]
    await started(processes)
    for ask in asks:
        assert await offer(processes, [ask]) == tuple(vocabulary.encode_chat([ask]))
    assert isinstance(await offer(processes, [Message("nobody", "hello")]), InvalidRequestError)

    assert member.process is not None and member.process.pid is not None
    os.kill(member.process.pid, signal.SIGSTOP)
    held = [offer(processes, asks[:1]) for _ in range(MAX_PENDING)]
    assert offer(processes, asks[:1]).cancelled(), "it has enough to do"
    os.kill(member.process.pid, signal.SIGKILL)
    for outcome in held:
        assert await outcome == tuple(vocabulary.encode_chat(asks[:1]))
    assert not member.is_ready and offer(processes, asks[:1]).cancelled()
    processes.close()
    await asyncio.to_thread(member.join, 30)
    assert member.process.exitcode == -signal.SIGKILL


async def test_another_process_caches_for_the_group_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs there, called here: its cache is asked by the group that it is told."""
    vocabulary, made = small_vocabulary(), list[CachingEncoder]()

    class Encoder(CachingEncoder):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            made.append(self)

    monkeypatch.setattr(other_process, "CachingEncoder", Encoder)
    ours, theirs = multiprocessing.Pipe()
    told = theirs, vocabulary, REFERENCE, 1 << 20
    serving = threading.Thread(target=other_process._serve, args=told)
    serving.start()
    chat, num_hits = [Message("user", "hello there")], list[int]()
    with ours:
        assert ours.recv_bytes() == b""
        for scope in (b"one", b"one", b"two", None, None, b"three"):
            job = TokenizationJob(
                *(chat, print, JobClass.SHORT, Requester(), 0, asyncio.get_running_loop(), 0.0),
                scope=scope,
            )
            assert (
                other_process._ask(ours, job) == array("I", vocabulary.encode_chat(chat)).tobytes()
            )
            num_hits.append(made[0].lookups[ContentClass.USER].num_hits)
    await asyncio.to_thread(serving.join, 30)
    theirs.close()
    assert num_hits == [0, 1, 1, 1, 1, 1]


@pytest.mark.e2e
async def test_all_of_a_chat_reaches_the_other_process() -> None:
    vocabulary = tool_templates.vocabulary_of(tool_templates.THINKING)
    processes = ProcessPool(vocabulary, REFERENCE, num_processes=1, cache_bytes=1 << 20)
    tools = check_tools(['{"name": "f", "description": "é"}'])
    call = ToolCall("call00001", "f", '{"a": "é"}')
    chat = [
        Message("developer", "Be brief.", name="app"),
        Message("user", "hello"),
        Message("assistant", "", (call,), reasoning="Hm."),
        Message("tool", "5", tool_call_id="call00001"),
    ]
    await started(processes)
    assert await offer(processes, chat, tools) == tuple(vocabulary.encode_chat(chat, tools))
    processes.close()
    await asyncio.to_thread(processes.members[0].join, 30)
