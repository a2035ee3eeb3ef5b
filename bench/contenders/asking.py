"""Asking work of a server: every request when it is due, in a task of its own."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable

from bench.contenders.work import Answer, Outcome, Request, Work


async def ask_all(work: Work, ask: Callable[[Request, float], Awaitable[Answer]]) -> Outcome:
    """`ask` gets a request and the work's beginning on time.perf_counter, and returns its answer
    with `asked_s` as the time it was called; of requests without a bound on concurrency, the
    wait since they fell due counts too."""
    slots = asyncio.Semaphore(work.concurrency) if work.concurrency else contextlib.nullcontext()
    begin = time.perf_counter()

    async def one(request: Request) -> Answer:
        await asyncio.sleep(max(0.0, begin + request.due_s - time.perf_counter()))
        async with slots:
            answer = await ask(request, begin)
        if work.concurrency:
            return answer
        return Answer(answer.ids, request.due_s, answer.token_s)

    answers = await asyncio.gather(*(one(request) for request in work.requests))
    return Outcome(time.perf_counter() - begin, tuple(answers))
