"""Compiles the grammars of sessions beside the event loop, and keeps what was compiled."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from functools import partial
from typing import Final, TypeAlias

from outrider.errors import OverloadedError
from outrider.fair_work.calls import FairThreads
from outrider.fair_work.turns import ANYBODY, Requester
from outrider.sampling.constraint import Constraint
from outrider.sampling.grammar import Grammar
from outrider.sampling.params import SamplingParams
from outrider.shared_calls import SharedCalls
from services.inference.grammars.compiler import CompiledGrammar, compile_grammar
from services.inference.grammars.kept import KeptGrammars
from services.inference.grammars.reply_constraint import behind_reasoning, with_budget
from services.inference.grammars.token_table import TokenTable

MAX_WAITING: Final = 256
"""Compilations that wait or run; for more, whoever has most of them loses the newest."""
MAX_WAITING_BYTES: Final = 16 << 20
"""Bytes of their grammars."""
COMPILE_S: Final = 5.0
"""Most seconds that a session waits, mostly for a thread; then it is told to retry. A compilation
that has begun is finished, and its result is kept: a busy machine makes no grammar invalid."""
_NUM_THREADS: Final = 2
_RETRY_MS: Final = 200

Key: TypeAlias = tuple[bytes, Grammar]
"""Trust group and grammar: what one group compiled is nothing that another could notice."""


class Grammars:
    """Compiled grammars of one vocabulary; used by one event loop."""

    def __init__(self, table: TokenTable) -> None:
        self._table = table
        self._kept = KeptGrammars()
        self._compiling: SharedCalls[Key, CompiledGrammar] = SharedCalls(for_nobody=False)
        self._threads = FairThreads(
            *(_NUM_THREADS, MAX_WAITING, MAX_WAITING_BYTES), name="grammar", what="the grammar"
        )

    def close(self) -> None:
        """Sessions that wait for a grammar are ended by their owner. Blocks for what is being
        compiled."""
        self._threads.close()

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
        self,
        group: bytes,
        sampling: SamplingParams,
        prompt: Sequence[int],
        requester: Requester = ANYBODY,
    ) -> Constraint:
        """For one reply, with a grammar. Threads are shared fairly between those who ask; one that
        is cancelled while it waits for one never gets it. Raises InvalidSamplingError for a grammar
        that is none or costs too much, and OverloadedError if it has to wait too long."""
        grammar = behind_reasoning(self._table, sampling, prompt)
        assert grammar is not None
        compiled = await self._compiled_grammar(group, grammar, requester)
        return with_budget(self._table, sampling, prompt, compiled) or compiled

    def _kept_grammar(self, group: bytes, grammar: Grammar) -> Constraint | None:
        compiled = self._kept.take(group, grammar)
        return None if compiled is None else compiled.constraint()

    async def _compiled_grammar(
        self, group: bytes, grammar: Grammar, requester: Requester
    ) -> Constraint:
        found = self._kept_grammar(group, grammar)
        if found is not None:
            return found
        try:
            async with asyncio.timeout(COMPILE_S):
                key = group, grammar
                compile_it = partial(self._compile, key, requester)
                return (await self._compiling.result(key, compile_it)).constraint()
        except TimeoutError:
            raise _overloaded("the grammar is not compiled yet") from None

    async def _compile(self, key: Key, requester: Requester) -> CompiledGrammar:
        loop = asyncio.get_running_loop()

        def work() -> CompiledGrammar:
            compiled = compile_grammar(self._table, key[1])
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody will ask for it
                loop.call_soon_threadsafe(self._kept.put, *key, compiled)
            return compiled

        return await self._threads.run(work, requester, num_bytes=len(key[1].text))


def _overloaded(why: str) -> OverloadedError:
    return OverloadedError(f"{why}; come back later", retry_delay_ms=_RETRY_MS)
