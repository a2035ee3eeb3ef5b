"""A small vocabulary of words, half characters and controls, and drafters that follow a script."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outrider.errors import InvalidRequestError, UnavailableError
from outrider.models.chat import Message
from outrider.models.detokenizer import Detokenizer
from outrider.sampling.params import SamplingParams
from outrider.sampling.reply import ReplyText
from outrider.session.types import Speculation
from services.edge.session.draft_chain import DraftLimits
from services.edge.session.draft_sources import Guess, Wanted, always
from services.edge.session.events import (
    ChatAsked,
    ChatRequest,
    ClientGone,
    Input,
    PromptReady,
    RegionFailed,
    RegionOpened,
)
from services.edge.session.machine import ChatSession, SessionPolicy, SessionState
from services.edge.session.reply import ReplyPolicy, ReplyTools

EOS = 0
TABLE = [
    b"",  # the end token
    *(b" the", b" cat", b" sat", b" on", b" mat", b".", b"\n", b" hel", b"lo", b"ing", b"STOP"),
    *("é".encode()[:1], "é".encode()[1:], "猫".encode(), " 🚂".encode()[:3], " 🚂".encode()[3:]),
    *(b" S", b"ST", b"OP", b"!", b" a", b"b"),
]
DIGEST = bytes(range(32))
PROMPT = (1, 2, 3)
LOST = RegionFailed(UnavailableError("the router is gone"), is_cut_off=True)
IDENTITY = b"\x0a" * 32
OPENED = RegionOpened(3, 0, "replica-1", "us-east", DIGEST, model_identity=IDENTITY)


class ScriptedDrafter:
    """Guesses that the reply goes on as `script` says, each token with the same confidence."""

    def __init__(
        self, script: Sequence[int] = (), confidence: float = 0.95, *, prompt_tokens: int = 0
    ) -> None:
        """The script begins behind so many tokens."""
        self.script = list(script)
        self.confidence = confidence
        self.learnt: list[int] = []
        self.prompt_tokens = prompt_tokens

    def extend(self, ids: Sequence[int]) -> None:
        self.learnt.extend(ids)

    def draft_after(
        self, tentative_ids: Sequence[int], max_tokens: int, wanted: Wanted = always
    ) -> Guess:
        at = len(self.learnt) - self.prompt_tokens + len(tentative_ids)
        ids = tuple(self.script[at : at + max_tokens])
        survival = tuple(self.confidence ** (n + 1) for n in range(len(ids)))
        return Guess(ids, survival, ("script",) * len(ids))


def drafting(*script: int) -> ScriptedDrafter:
    """What guesses that the reply to PROMPT goes on so."""
    return ScriptedDrafter(script, prompt_tokens=len(PROMPT))


def new_reply(params: SamplingParams) -> ReplyText:
    return ReplyText(params, {EOS}, Detokenizer(TABLE))


def token_bytes(token: int) -> bytes:
    """As the vocabulary's own."""
    if not 0 <= token < len(TABLE):
        raise InvalidRequestError(f"token id {token} is outside the vocabulary")
    return TABLE[token]


def tools(drafter: ScriptedDrafter | None = None) -> ReplyTools:
    return ReplyTools(
        new_reply=new_reply,
        new_drafter=lambda needs: drafter or ScriptedDrafter(),
        token_bytes=token_bytes,
        stop_ids=frozenset({EOS}),
    )


def request(
    *,
    sampling: SamplingParams | None = None,
    provisional: bool = True,
    speculation: Speculation = Speculation.ON,
    thin: bool = False,
    deadline_ms: int = 0,
) -> ChatRequest:
    return ChatRequest(
        request_id="r-1",
        model="m",
        messages=(Message("user", "hello"),),
        sampling=sampling or SamplingParams(),
        provisional=provisional,
        speculation=speculation,
        thin=thin,
        deadline_ms=deadline_ms,
    )


def policy(**limits: Any) -> SessionPolicy:
    drafts = DraftLimits(max_lead=8, absorb_tokens=16)
    return SessionPolicy(
        vocabulary_digest=DIGEST, max_context_tokens=64, reply=ReplyPolicy(drafts=drafts), **limits
    )


def session(drafter: ScriptedDrafter | None = None, now: float = 0.0) -> ChatSession:
    return ChatSession(policy(), tools(drafter), now)


def in_state(state: SessionState, drafter: ScriptedDrafter | None = None) -> ChatSession:
    chat = session(drafter)
    steps: dict[SessionState, list[Input]] = {
        SessionState.AWAITING: [],
        SessionState.TOKENIZING: [ChatAsked(request())],
        SessionState.OPENING: [ChatAsked(request()), PromptReady(PROMPT)],
        SessionState.STREAMING: [ChatAsked(request()), PromptReady(PROMPT), OPENED],
        SessionState.REOPENING: [ChatAsked(request()), PromptReady(PROMPT), OPENED, LOST, LOST],
        SessionState.CLOSED: [ClientGone()],
    }
    for step in steps[state]:
        chat.handle(step, 0.0)
    assert chat.state is state
    return chat


def reference_text(ids: Sequence[int], params: SamplingParams | None = None) -> str:
    reply = new_reply(params or SamplingParams())
    return "".join(reply.push(token) for token in ids if not reply.finished) + reply.flush()
