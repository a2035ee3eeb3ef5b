"""A session that does not look for drafts learns many tokens at once, and guesses as before."""

from __future__ import annotations

import random

from outrider.speculation.suffix_drafter import SuffixDrafter
from services.inference.scheduling.drafting.sources import (
    MAX_TAIL,
    Acceptance,
    DraftSources,
    EdgeChain,
)


def sources(*, edge: bool = False) -> DraftSources:
    chain = EdgeChain(0, 8) if edge else None
    return DraftSources(chain, SuffixDrafter(), Acceptance(0.5))


def grown(source: DraftSources, text: list[int], *, looks: bool) -> list[tuple[int, ...]]:
    """What it proposes as the text grows token by token."""
    proposals = []
    for end in range(1, len(text)):
        source.teach(text[:end], 512)
        proposals.append(source.propose(4, looks=looks).ids)
        source.study()
    return proposals


def test_nothing_is_proposed_without_a_look_and_little_is_left_unlearned() -> None:
    draw = random.Random(5)
    text = [draw.randrange(4) for _ in range(300)]
    source = sources()
    assert set(grown(source, text, looks=False)) == {()}
    assert source.num_untaught(text) <= MAX_TAIL // 2


def test_a_look_after_many_calls_without_proposes_what_constant_looks_do() -> None:
    text = [1, 2, 3, 4, 5, 6, 7, 8] * 6
    never, always = sources(), sources()
    grown(never, text, looks=False)
    grown(always, text, looks=True)
    for source in (never, always):
        source.teach(text, 512)
    assert never.propose(4).ids == always.propose(4).ids == (1, 2, 3, 4)


def test_the_edges_chain_is_offered_without_a_look() -> None:
    source = sources(edge=True)
    source.teach([1, 2, 3], 512)
    assert source.chain is not None
    source.chain.ids = [7, 8]
    assert source.propose(4, looks=False).ids == (7, 8)
