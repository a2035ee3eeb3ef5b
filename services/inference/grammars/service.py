"""Compiles the grammars of sessions beside the event loop, and keeps what was compiled."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeAlias

from outrider.errors import OverloadedError
from outrider.sampling.constraint import Constraint
from outrider.sampling.grammar import Grammar
from outrider.sampling.params import SamplingParams
from outrider.shared_calls import SharedCalls
from services.inference.grammars.compiler import CompiledGrammar, compile_grammar
from services.inference.grammars.kept import KeptGrammars
from services.inference.grammars.reply_constraint import behind_reasoning, with_budget
from services.inference.grammars.token_table import TokenTable

MAX_WAITING = 32
"""Compilations that wait or run."""
MAX_WAITING_OF_GROUP = 4
"""Most compilations of one trust group among these: other groups wait behind no more than that."""
MAX_QUEUED = 256
"""Sessions that wait until their group has fewer compilations."""
MAX_QUEUED_OF_GROUP = 64
"""Most sessions of one trust group among these."""
COMPILE_S = 5.0
"""Most seconds that a session waits, mostly for a thread; then it is told to retry. The thread
continues, and its result is cached: a busy machine makes no grammar invalid."""
_NUM_THREADS = 2
_RETRY_MS = 200

Key: TypeAlias = tuple[bytes, Grammar]
"""Trust group and grammar: what one group compiled is nothing that another could notice."""


class Grammars:
    """Compiled grammars of one vocabulary; used by one event loop."""

    def __init__(self, table: TokenTable) -> None:
        self._table = table
        self._kept = KeptGrammars()
        self._compiling: SharedCalls[Key, CompiledGrammar] = SharedCalls()
        self._waiting: Counter[bytes] = Counter()
        """Compilations by trust group."""
        self._queued: Counter[bytes] = Counter()
        """Sessions by trust group that wait for its turn."""
        self._threads = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="grammar")

    def close(self) -> None:
        """Sessions that wait for a grammar are ended by their owner."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def kept(
        self, group: bytes, sampling: SamplingParams, prompt: Sequence[int]
    ) -> Constraint | None:
        """For one reply, which is constrained; None where the grammar has to be compiled first.
        Raises InvalidSamplingError."""
        grammar = behind_reasoning(self._table, sampling, prompt)
        found = None if grammar is None else self._kept_grammar(group, grammar)
        if grammar is not None and found is None:
            return None
        return with_budget(self._table, sampling, prompt, found)

    async def constraint(
        self, group: bytes, sampling: SamplingParams, prompt: Sequence[int]
    ) -> Constraint:
        """For one reply, with a grammar. Raises InvalidSamplingError for a grammar that is none or
        costs too much, and OverloadedError where others' have to be compiled before it."""
        grammar = behind_reasoning(self._table, sampling, prompt)
        assert grammar is not None
        compiled = await self._compiled_grammar(group, grammar)
        return with_budget(self._table, sampling, prompt, compiled) or compiled

    def _kept_grammar(self, group: bytes, grammar: Grammar) -> Constraint | None:
        compiled = self._kept.take(group, grammar)
        return None if compiled is None else compiled.constraint()

    async def _compiled_grammar(self, group: bytes, grammar: Grammar) -> Constraint:
        try:
            async with asyncio.timeout(COMPILE_S):
                key = group, grammar
                while (found := self._kept_grammar(group, grammar)) is None:
                    has_turn = self._waiting[group] < MAX_WAITING_OF_GROUP
                    if has_turn or key in self._compiling.running:
                        begin = partial(self._compile, key)
                        return (await self._compiling.result(key, begin)).constraint()
                    await self._turn(group)
                return found
        except TimeoutError:
            raise _overloaded("the grammar is not compiled yet") from None

    async def _turn(self, group: bytes) -> None:
        """Return when one of the group's compilations is over."""
        if self._queued[group] >= MAX_QUEUED_OF_GROUP or self._queued.total() >= MAX_QUEUED:
            raise _overloaded("too many grammars are being compiled")
        running = [done for key, done in self._compiling.running.items() if key[0] == group]
        self._queued[group] += 1
        try:
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._queued[group] -= 1
            self._queued += Counter()

    def _compile(self, key: Key) -> asyncio.Future[CompiledGrammar]:
        group, grammar = key
        if self._waiting.total() >= MAX_WAITING:
            raise _overloaded("too many grammars are being compiled")
        loop = asyncio.get_running_loop()
        compiling = loop.run_in_executor(self._threads, compile_grammar, self._table, grammar)
        self._waiting[group] += 1
        compiling.add_done_callback(lambda done: self._compiled(key, done))
        return compiling

    def _compiled(self, key: Key, done: asyncio.Future[CompiledGrammar]) -> None:
        self._waiting[key[0]] -= 1
        self._waiting += Counter()  # groups without any are dropped
        if done.cancelled() or done.exception() is not None:
            return
        self._kept.put(*key, done.result())


def _overloaded(why: str) -> OverloadedError:
    return OverloadedError(f"{why}; come back later", retry_delay_ms=_RETRY_MS)
