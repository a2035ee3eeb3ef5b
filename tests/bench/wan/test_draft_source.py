"""What the published schemes draft with: the chain of a drafter, told late, early or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from bench.wan import draft_source as module
from bench.wan.draft_source import DrafterSource, Sources, SuffixSource, drafting
from bench.wan.waiting_edge import CHAIN, STOP_AND_WAIT, WaitingPolicy
from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.vocabulary import Vocabulary
from outrider.sampling.params import SamplingParams
from outrider.telemetry.metrics import Metrics
from services.edge.drafter.link import DrafterLink, OnDrafts
from services.edge.drafter.metrics import DrafterMetrics
from services.edge.drafter.settings import DrafterConfig, DrafterSettings
from services.edge.models.labels import ModelLabels
from services.edge.session.events import DrafterReport, OpenDrafter
from tests.bench.wan.test_waiting import GREEDY, PROMPT, SAMPLED, asking, reply, truth

END = 2


class Pretended(DrafterLink):
    """A link whose process is the test, which says `tell` to every reply at once."""

    def __init__(self, right: Sequence[int] = (), num_right: int = 0) -> None:
        self.metrics = Metrics("edge")
        settings = DrafterSettings(model="none")
        super().__init__(settings, 1000, DrafterMetrics(ModelLabels(self.metrics), "m"))
        self.right, self.num_right = right, num_right
        self.on_guess: OnDrafts | None = None
        self.known: list[int] = []
        self.leads = set[int]()

    def open(self, wanted: OpenDrafter, on_drafts: OnDrafts, tenant: str = "") -> int:
        self.on_guess = on_drafts
        self.known = list(wanted.reply)
        self.guess()
        return super().open(wanted, on_drafts, tenant)

    def commit(self, number: int, ids: Sequence[int], lead: int) -> None:
        self.known += ids
        self.leads.add(lead)
        super().commit(number, ids, lead)
        asyncio.get_running_loop().call_later(0.002, self.guess)

    def guess(self) -> None:
        """So many right guesses, then wrong ones up to the end of the reply."""
        if self.right:
            base = len(self.known)
            right = self.right[base : base + self.num_right]
            wrong = [(token + 1) % 7 for token in self.right[base + self.num_right :]]
            self.tell(base, *right, *wrong)

    def tell(self, base: int, *ids: int) -> None:
        assert self.on_guess is not None
        self.on_guess(DrafterReport(base, ids, (1.0,) * len(ids), ("model",) * len(ids), 0.005))


def opened(link: Pretended, max_tokens: int = 8) -> DrafterSource:
    wanted = OpenDrafter((1,), (), SamplingParams(max_tokens=max_tokens), frozenset({END}), 4)
    return DrafterSource(link, wanted, [])


@dataclass
class Told:
    link: Pretended = field(default_factory=Pretended)

    def __post_init__(self) -> None:
        self.source = opened(self.link)


def test_nothing_is_known_before_it_was_told() -> None:
    told = Told()
    assert told.source.draft_after((), 1, 4) is None
    told.link.tell(0, 10, 11)
    assert told.source.draft_after((), 4, 4) is None, "not whole"
    assert told.source.draft_after((), 1, 4) == (10, 11)
    assert told.source.draft_after((10,), 1, 4) == (11,)
    assert told.source.draft_after((10, 11), 1, 4) is None
    assert told.source.draft_after((12,), 1, 4) == (), "what was sent is not continued any more"


async def test_a_chain_goes_on_behind_what_became_final_and_waits_for_another_otherwise() -> None:
    told = Told()
    told.link.tell(0, 10, 11, 12)
    told.source.commit((10,))
    assert told.source.draft_after((), 1, 4) == (11, 12)
    told.source.commit((13,))
    assert told.source.draft_after((), 1, 4) is None
    told.link.tell(1, 11, 12, 14)
    assert told.source.draft_after((), 1, 4) is None
    told.link.tell(2, 15)
    assert told.source.draft_after((), 1, 4) == (15,)


def test_chains_end_with_the_reply() -> None:
    told = Told()
    told.link.tell(0, 10, END)
    assert told.source.draft_after((), 4, 4) == (10, END)
    assert told.source.draft_after((10, END), 4, 4) == ()
    told.link.tell(0, *range(10, 18))
    assert told.source.draft_after(range(10, 16), 4, 4) == (16, 17)


async def test_a_drafter_that_says_nothing_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "PATIENCE_S", 0.01)
    told = Told()
    await told.source.changed()
    assert told.source.draft_after((), 1, 4) == ()
    told.source.commit((10,))
    assert told.source.draft_after((), 1, 4) is None


@pytest.mark.parametrize("policy", [STOP_AND_WAIT, CHAIN])
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED])
@pytest.mark.parametrize("num_right", [0, 3])
async def test_replies_are_exact_whatever_the_drafter_says(
    policy: WaitingPolicy, sampling: SamplingParams, num_right: int
) -> None:
    right = truth(PROMPT, sampling)
    sources = Sources(link=Pretended(right, num_right))
    async with asking() as client:
        source = sources.open(PROMPT, sampling, policy.max_lead)
        got = await reply(client, sampling, policy, source)
        source.close()
    assert tuple(got.ids) == right
    assert (got.num_accepted > 0) == (num_right > 0)
    assert sources.link is not None and sources.link.num_sessions == 0
    assert set(sources.take_calls_ms()) == {5.0} and not sources.take_calls_ms()


async def test_a_reply_does_not_hang_on_a_drafter_that_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "PATIENCE_S", 0.01)
    async with asking() as client:
        got = await reply(client, GREEDY, STOP_AND_WAIT, opened(Pretended()))
    assert tuple(got.ids) == truth(PROMPT, GREEDY)
    assert not got.num_drafts


async def test_without_a_model_the_suffix_automaton_drafts(vocabulary: Vocabulary) -> None:
    unfit = DrafterSettings(
        DEFAULT_MODEL.name, DrafterConfig(model="/no/such.gguf"), log_level="error"
    )
    for settings in (None, unfit):
        async with drafting(settings, vocabulary) as sources:
            assert sources.name == "suffix automaton"
            assert isinstance(sources.open(PROMPT, GREEDY, 4), SuffixSource)
