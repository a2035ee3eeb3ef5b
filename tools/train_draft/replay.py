"""A recorded reply once more, in virtual time: the region says it token by token, the draft model
guesses along on its engine, and the edge's own session decides what the reader is shown.

The drafter's guesses do not depend on what is shown, so they are made once for each round trip, and
any number of display policies are then shown the same guesses. Every chat begins with nothing
learned but what is shipped: it is an edge's first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from outrider.engines.base import Engine
from outrider.engines.draft_calibration import DraftCalibration
from outrider.sampling.params import SamplingParams
from outrider.session_types import FinishReason, Speculation
from outrider.speculation.calibration import SourceCalibrations
from outrider.speculation.ngrams import NgramPrior
from services.edge.drafter.calibration import GroupLearning
from services.edge.drafter.drafter import Drafter, EngineCall, run
from services.edge.drafter.link import first_draft_limit_s, heard_of
from services.edge.drafter.protocol import CommitTokens, OpenReply
from services.edge.drafter.settings import DrafterLimits
from services.edge.session.acceptance import Averages
from services.edge.session.display import Display, DisplayPolicy
from services.edge.session.events import (
    Action,
    ChatAsked,
    ChatRequest,
    DrafterReport,
    DraftsReady,
    Input,
    PromptReady,
    RegionCommit,
    RegionDone,
    RegionOpened,
    Tick,
)
from services.edge.session.machine import ChatSession, SessionPolicy
from services.edge.session.reply import ReplyPolicy, ReplyTools
from tools.train_draft.replies import Reply

_SESSION = 1
_MAX_CONTEXT_TOKENS = 1 << 20


@dataclass(frozen=True, slots=True)
class Speeds:
    """How long things take, in milliseconds. The defaults are of two shared CPU cores."""

    ttft_ms: float = 30.0
    """From a prompt's arrival at the region to the first token, and..."""
    region_prompt_ms: float = 1.0
    """...for each token of the prompt beside."""
    token_ms: float = 15.0
    """Between two tokens of the region."""
    draft_call_ms: float = 2.5
    """A call of the draft model, and..."""
    draft_row_ms: float = 0.2
    """...for each row of it but the first."""

    def commit_s(self, reply: Reply, number: int, rtt_s: float) -> float:
        """When token `number` is at the edge, from the prompt's tokens being known there."""
        first_ms = self.ttft_ms + self.region_prompt_ms * len(reply.prompt)
        return rtt_s + (first_ms + self.token_ms * number) / 1e3

    def call_s(self, call: EngineCall) -> float:
        """Of the draft model."""
        num_rows = sum(len(part.slice.tokens) for part in call.scheduled)
        return (self.draft_call_ms + self.draft_row_ms * (num_rows - 1)) / 1e3


@dataclass(frozen=True, slots=True)
class Guessed:
    """What a drafter said along with a reply."""

    reply: Reply
    rtt_s: float
    heard: tuple[tuple[float, DrafterReport], ...]
    """When it was heard, from the prompt's tokens being known, and what."""


def params_of(reply: Reply) -> SamplingParams:
    """What the recorded reply was asked with."""
    return SamplingParams(temperature=reply.temperature, seed=reply.seed, max_tokens=len(reply.ids))


class GuessRecorder:
    """Has a drafter guess along with replies."""

    def __init__(
        self,
        engine: Engine,
        calibration: DraftCalibration,
        prior: NgramPrior | None,
        sources: SourceCalibrations,
        stop_ids: frozenset[int],
        speeds: Speeds,
    ) -> None:
        self._engine = engine
        self._speeds = speeds
        self._ends = tuple(sorted(stop_ids))
        self._drafter = Drafter(
            engine.info,
            DrafterLimits(),
            calibration,
            GroupLearning(prior, sources),  # no reply is of a group
        )

    def guesses(self, reply: Reply, rtt_s: float) -> Guessed:
        """What it says, and when."""
        drafter, heard = self._drafter, list[tuple[float, DrafterReport]]()
        drafter.open(
            OpenReply(_SESSION, tuple(reply.prompt.tolist()), (), params_of(reply), self._ends), 0.0
        )
        now, num_final = 0.0, 0
        while num_final < len(reply.ids):
            call, ready_s = drafter.schedule(now), None
            if call is not None:
                rows = run(self._engine, call)
                ready_s = now + self._speeds.call_s(call)
            # What becomes final while the model computes is told in the meantime.
            while num_final < len(reply.ids):
                at = self._speeds.commit_s(reply, num_final, rtt_s)
                if ready_s is not None and at > ready_s:
                    break
                now = max(now, at)
                drafter.commit(CommitTokens(_SESSION, (int(reply.ids[num_final]),)), now)
                num_final += 1
                if ready_s is None:
                    break
            if call is not None and ready_s is not None:
                now = ready_s
                drafter.apply(call, rows, self._speeds.call_s(call))
            heard += ((now, heard_of(guess)) for guess in drafter.take_updates(now))
        drafter.close(_SESSION)
        return Guessed(reply, rtt_s, tuple(heard))


Seen: TypeAlias = tuple[float, Action]
"""What a session wanted done, and when."""


@dataclass(frozen=True, slots=True)
class Shown:
    """What became of one chat."""

    guessed: Guessed
    events: tuple[Seen, ...]
    display: Display


class DisplayReplay:
    """Shows recorded guesses by a policy."""

    def __init__(
        self, tools: ReplyTools, sources: SourceCalibrations, digest: bytes, speeds: Speeds
    ) -> None:
        """`tools` are the edge's, without a drafter."""
        self._tools = tools
        self._sources = sources
        self._digest = digest
        self._speeds = speeds

    def show(self, guessed: Guessed, policy: DisplayPolicy) -> Shown:
        """The chat as its reader sees it."""
        session = self._session(policy)
        events = list[Seen]()
        request = ChatRequest(
            request_id="replay",
            model="",
            messages=(),
            sampling=params_of(guessed.reply),
            provisional=True,
            speculation=Speculation.REGION_ONLY,
        )
        for now, item in _in_time(session, self._inputs(guessed, request)):
            events += ((now, action) for action in session.handle(item, now))
        assert session.error is None and session.reply is not None
        return Shown(guessed, tuple(events), session.reply.display)

    def _session(self, policy: DisplayPolicy) -> ChatSession:
        speeds = self._speeds
        tools = replace(
            self._tools,
            has_drafter=True,
            averages=lambda group: Averages(self._sources),
            first_guess_s=lambda num_tokens: first_draft_limit_s(
                num_tokens, speeds.draft_row_ms / 1e3
            ),
        )
        reply = ReplyPolicy(display=policy)
        limits = SessionPolicy(self._digest, _MAX_CONTEXT_TOKENS, reply=reply)
        return ChatSession(limits, tools, 0.0)

    def _inputs(self, guessed: Guessed, request: ChatRequest) -> list[tuple[float, Input]]:
        reply, rtt_s = guessed.reply, guessed.rtt_s
        opened = RegionOpened(len(reply.prompt), 0, "replica", "region", self._digest)
        inputs: list[tuple[float, Input]] = [
            (0.0, ChatAsked(request)),
            (0.0, PromptReady(tuple(reply.prompt.tolist()))),
            (rtt_s, opened),
        ]
        last_s = 0.0
        for number, token in enumerate(reply.ids.tolist()):
            last_s = self._speeds.commit_s(reply, number, rtt_s)
            inputs.append((last_s, RegionCommit(0, number, 0, (token,), number + 1)))
        inputs.append((last_s, RegionDone(FinishReason.STOP, len(reply.ids))))
        inputs += ((at, DraftsReady(heard)) for at, heard in guessed.heard if at < last_s)
        return sorted(inputs, key=lambda pair: pair[0])


def _in_time(
    session: ChatSession, inputs: Sequence[tuple[float, Input]]
) -> Iterator[tuple[float, Input]]:
    """The inputs in their order, with the session's own deadlines between them."""
    for at, item in inputs:
        while (due := session.next_deadline()) is not None and due < at:
            yield due, Tick()
        yield at, item
