"""Compiled beside the event loop, kept for those who asked, and no more than there is room for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from outrider.errors import InvalidSamplingError, OverloadedError
from outrider.fair_work.turns import Requester
from outrider.sampling.constraint import Constraint
from outrider.sampling.grammar import Grammar, GrammarKind
from outrider.sampling.params import SamplingParams
from outrider.testing import eventually
from services.inference.grammars import service
from services.inference.grammars.compiler import CompiledGrammar, compile_grammar
from services.inference.grammars.service import Grammars
from services.inference.grammars.token_table import TokenTable
from tests.inference.grammars.finite import TABLE

GROUP, OTHER = b"group", b"other"


def regex(text: str) -> SamplingParams:
    return SamplingParams(grammar=Grammar(GrammarKind.REGEX, text))


@pytest.fixture
async def grammars() -> AsyncIterator[Grammars]:
    made = Grammars(TABLE)
    yield made
    made.close()


async def test_compiled_once_for_a_group(grammars: Grammars) -> None:
    assert grammars.kept(GROUP, regex("ab"), ()) is None
    one, two = await asyncio.gather(
        grammars.constraint(GROUP, regex("ab"), ()), grammars.constraint(GROUP, regex("ab"), ())
    )
    assert one is not two
    one.advance(7)
    assert two.allowed().sum() == 1, "a reply of its own"
    assert len(grammars._kept) == 1
    assert grammars.kept(GROUP, regex("ab"), ()) is not None
    assert grammars.kept(OTHER, regex("ab"), ()) is None, "nothing passes between groups"


async def test_what_is_no_grammar_is_refused_and_not_kept(grammars: Grammars) -> None:
    for _ in range(2):
        with pytest.raises(InvalidSamplingError, match="regular expression"):
            await grammars.constraint(GROUP, regex("(a"), ())
    assert not len(grammars._kept) and not grammars._compiling.running


class Held:
    """Compilations begin, and end when they are let."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may_end = threading.Event()
        self.begun: list[str] = []
        monkeypatch.setattr(service, "compile_grammar", self._compile)

    def _compile(self, table: TokenTable, grammar: Grammar) -> CompiledGrammar:
        self.begun.append(grammar.text)
        assert self.may_end.wait(30)
        return compile_grammar(table, grammar)


def asked(
    grammars: Grammars, name: str, count: int, requester: Requester
) -> list[asyncio.Task[Constraint]]:
    """So many different grammars of one group, in order."""
    group = requester.client.encode()
    return [
        asyncio.create_task(grammars.constraint(group, regex(f"{name}{{{number}}}"), (), requester))
        for number in range(1, count + 1)
    ]


async def test_whoever_asks_for_many_waits_and_others_take_turns(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch)
    flood = asked(grammars, "a", 20, Requester("address", "one"))
    await eventually(lambda: len(held.begun) == 2)
    same = asked(grammars, "b", 2, Requester("address", "other"))
    elsewhere = asked(grammars, "c", 2, Requester("elsewhere", "third"))
    await eventually(lambda: grammars._threads.num_pending == 24)
    held.may_end.set()
    await asyncio.gather(*flood, *same, *elsewhere)
    assert held.begun[2:].index("c{1}") < 2 and held.begun[2:].index("c{2}") < 6
    assert held.begun[2:].index("b{1}") < 6, "and so do clients of one origin"


async def test_whoever_waits_and_leaves_is_compiled_nothing(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch)
    tasks = asked(grammars, "a", 4, Requester("one", "one"))
    twice = asked(grammars, "a", 4, Requester("one", "one"))
    await eventually(lambda: len(held.begun) == 2)
    for task in (*tasks, *twice):
        task.cancel()
    await asyncio.gather(*tasks, *twice, return_exceptions=True)
    held.may_end.set()
    await eventually(lambda: len(grammars._kept) == 2)
    assert held.begun == ["a{1}", "a{2}"] and not grammars._threads.num_pending


async def test_what_waits_is_bounded_and_the_greediest_loses_some(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "MAX_WAITING", 6)
    few, held = Grammars(TABLE), Held(monkeypatch)
    flood = asked(few, "a", 8, Requester("one"))
    await eventually(lambda: len(held.begun) == 2 and sum(it.done() for it in flood) == 2)
    other = asked(few, "b", 1, Requester("other"))
    await eventually(lambda: sum(it.done() for it in flood) == 3)
    held.may_end.set()
    assert (await other[0]).allowed().any()
    done = await asyncio.gather(*flood, return_exceptions=True)
    lost = [one for one in done if isinstance(one, BaseException)]
    assert len(lost) == 3 and all(isinstance(one, OverloadedError) for one in lost)
    few.close()


async def test_who_waits_too_long_is_told(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch)
    asking = asyncio.create_task(grammars.constraint(GROUP, regex("ab"), ()))
    await eventually(lambda: held.begun == ["ab"])
    monkeypatch.setattr(service, "COMPILE_S", 0.0)
    with pytest.raises(OverloadedError, match="compiled") as caught:
        await grammars.constraint(GROUP, regex("abc"), ())
    assert caught.value.retry_delay_ms > 0
    asking.cancel()
    held.may_end.set()
    await eventually(lambda: grammars.kept(GROUP, regex("ab"), ()) is not None)
    # What had begun was compiled all the same: a busy machine makes no grammar invalid.
