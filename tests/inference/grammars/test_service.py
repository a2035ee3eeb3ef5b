"""Compiled beside the event loop, kept for those who asked, and no more than there is room for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from outrider.errors import InvalidSamplingError, OverloadedError
from outrider.sampling.grammar import Grammar, GrammarKind
from outrider.sampling.params import SamplingParams
from services.inference.grammars import service
from services.inference.grammars.service import Grammars
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
    assert not len(grammars._kept) and not grammars._compiling.running and not grammars._waiting


async def test_a_group_has_its_share_of_the_threads_and_waits_for_it(grammars: Grammars) -> None:
    count = service.MAX_WAITING_OF_GROUP + service.MAX_QUEUED_OF_GROUP
    asked = [
        asyncio.create_task(grammars.constraint(GROUP, regex(f"a{{{number + 1}}}"), ()))
        for number in range(count + 1)
    ]
    theirs = asyncio.create_task(grammars.constraint(OTHER, regex("ab"), ()))
    await asyncio.sleep(0)
    assert grammars._waiting == {GROUP: service.MAX_WAITING_OF_GROUP, OTHER: 1}
    assert grammars._queued == {GROUP: service.MAX_QUEUED_OF_GROUP}
    assert (await theirs).allowed().any()
    *served, last = await asyncio.gather(*asked, return_exceptions=True)
    assert isinstance(last, OverloadedError) and last.retry_delay_ms > 0
    assert not any(isinstance(one, BaseException) for one in served)
    assert not grammars._waiting and not grammars._queued and not grammars._compiling.running


async def test_who_waits_for_its_group_and_leaves_leaves_nothing(grammars: Grammars) -> None:
    asked = [
        asyncio.create_task(grammars.constraint(GROUP, regex(f"a{{{number + 1}}}"), ()))
        for number in range(service.MAX_WAITING_OF_GROUP + 1)
    ]
    await asyncio.sleep(0)
    asked[-1].cancel()
    await asyncio.gather(*asked, return_exceptions=True)
    assert asked[-1].cancelled()
    assert not grammars._waiting and not grammars._queued


async def test_all_groups_together_have_bounds_too(grammars: Grammars) -> None:
    asked = [
        asyncio.create_task(grammars.constraint(b"%d" % number, regex("ab"), ()))
        for number in range(service.MAX_WAITING + 2)
    ]
    done = await asyncio.gather(*asked, return_exceptions=True)
    assert sum(isinstance(one, OverloadedError) for one in done) == 2


async def test_who_waits_too_long_is_told(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "COMPILE_S", 0.0)
    with pytest.raises(OverloadedError, match="compiled") as caught:
        await grammars.constraint(GROUP, regex("ab"), ())
    assert caught.value.retry_delay_ms > 0, "a busy machine makes no grammar invalid"
    await asyncio.gather(*grammars._compiling.running.values())
    assert grammars.kept(GROUP, regex("ab"), ()) is not None, "it was compiled all the same"
