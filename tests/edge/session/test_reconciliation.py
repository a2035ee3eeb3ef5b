"""A region that commits a fixed text at random times, against drafts of random quality: the client
always ends with the reference text, and the provisional events always fit what it has."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.client.transcript import Transcript
from outrider.sampling.params import SamplingParams
from outrider.session.client import Accepted, Committed, Done, Provisional, Retracted
from outrider.session.region import Commit, Draft
from outrider.session.types import FinishReason
from services.edge.session.display import DisplayPolicy
from services.edge.session.events import (
    Action,
    ChatAsked,
    Finish,
    PromptReady,
    RegionDone,
    RegionOpened,
    Tick,
)
from services.edge.session.machine import ChatSession, SessionState
from tests.edge.session.toolkit import (
    DIGEST,
    EOS,
    TABLE,
    ScriptedDrafter,
    new_reply,
    reference_text,
    request,
    session,
)

TOLD = Accepted | Provisional | Retracted | Committed | Done


class World:
    """A client's transcript, an edge's session and a scripted region in virtual time."""

    def __init__(self, seed: int, *, perfect: bool = False) -> None:
        self.rng = Random(seed)
        self.now = 0.0
        self.params = SamplingParams(
            max_tokens=self.rng.choice([5, 20, 60]),
            stop=self.rng.choice([(), ("STOP",), (" cat.", "lo")]),
        )
        self.truth = self.draw_truth()
        accuracy = 1.0 if perfect else self.rng.choice([0.0, 0.5, 0.8, 1.0])
        script = [t if self.rng.random() < accuracy else self.token() for t in self.truth]
        drafter = ScriptedDrafter(
            [*script, *([] if perfect else self.draw(10))], self.rng.choice([0.6, 0.95])
        )
        drafter.prompt_tokens = 3
        self.chat: ChatSession = session(drafter)
        self.transcript = Transcript()
        self.rewrites: list[float] = []
        self.epoch, self.begin, self.drafts = 0, 0, list[int]()
        self.committed = 0

    def token(self) -> int:
        return self.rng.randrange(1, len(TABLE))

    def draw(self, count: int) -> list[int]:
        return [self.token() for _ in range(count)]

    def draw_truth(self) -> list[int]:
        reply, ids = new_reply(self.params), list[int]()
        while not reply.finished:
            ids.append(EOS if self.rng.random() < 0.02 else self.token())
            reply.push(ids[-1])
        return ids

    def perform(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Draft):
                if action.epoch != self.epoch:
                    self.epoch, self.begin, self.drafts = action.epoch, action.base, []
                assert action.base == self.begin + len(self.drafts)
                self.drafts += action.ids
            if isinstance(action, TOLD):
                erased = self.transcript.erased_chars
                self.transcript.apply(action)
                if self.transcript.erased_chars > erased:
                    self.rewrites.append(self.now)

    def commit(self) -> Commit:
        base, known = self.committed, self.drafts[: self.committed - self.begin]
        alive = base >= self.begin and known == self.truth[self.begin : base]
        ahead = self.drafts[base - self.begin :] if alive else []
        accepted = 0
        for draft, true in zip(ahead, self.truth[base:], strict=False):
            if draft != true:
                break
            accepted += 1
        ids = self.truth[base + accepted : base + accepted + self.rng.randint(1, 4)]
        self.committed += accepted + len(ids)
        return Commit(self.epoch, base, accepted, tuple(ids))

    def run(self) -> None:
        self.perform(self.chat.handle(ChatAsked(request(sampling=self.params)), self.now))
        self.perform(self.chat.handle(PromptReady((1, 2, 3)), self.now))
        self.perform(self.chat.handle(RegionOpened(3, 0, "r", "us", DIGEST), self.now))
        while self.committed < len(self.truth):
            at = self.now + self.rng.choice([0.0, 0.0005, 0.01, 0.2])
            while (due := self.chat.next_deadline()) is not None and due <= at:
                self.now = max(due, self.now)
                self.perform(self.chat.handle(Tick(), self.now))
            self.now = at
            self.perform(self.chat.handle(self.commit(), self.now))
        done = RegionDone(FinishReason.STOP, self.committed)
        actions = self.chat.handle(done, self.now)
        assert actions[-1] == Finish()
        self.perform(actions)


@settings(max_examples=100)
@given(st.integers(0, 2**32 - 1))
def test_the_client_ends_with_the_reference_text_and_few_rewrites_come_close_together(
    seed: int,
) -> None:
    world, burst = World(seed), DisplayPolicy().rewrite_burst
    world.run()
    assert world.chat.state is SessionState.CLOSED
    assert world.transcript.committed == reference_text(world.truth, world.params)
    assert world.transcript.ids == world.truth
    assert world.transcript.provisional == ""
    gaps = [b - a for a, b in zip(world.rewrites, world.rewrites[burst:], strict=False)]
    assert all(gap >= 0.15 - 1e-9 for gap in gaps)


@given(st.integers(0, 2**32 - 1))
def test_perfect_drafts_are_never_taken_back(seed: int) -> None:
    world = World(seed, perfect=True)
    world.run()
    assert world.transcript.erased_chars == 0
