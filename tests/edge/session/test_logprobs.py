"""Log probabilities of commits on their way to the client, and what the region cannot send."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outrider.errors import PeerFaultError
from outrider.sampling.params import SamplingParams
from outrider.session.client import Committed, Failed
from outrider.session.region import Commit
from outrider.session.types import ScoredToken, TokenLogprobs
from services.edge.session.events import (
    Action,
    ChatAsked,
    OpenRegion,
    PromptReady,
    ResumePoint,
    Tick,
    Tokenize,
)
from services.edge.session.machine import ChatSession
from tests.edge.session.toolkit import (
    EOS,
    IDENTITY,
    LOST,
    OPENED,
    PROMPT,
    drafting,
    request,
    session,
)


def told(token: int, *others: int) -> TokenLogprobs:
    return TokenLogprobs(ScoredToken(token, -0.5), tuple(ScoredToken(o, -1.0) for o in others))


def streaming(num_logprobs: int, resume: ResumePoint | None = None) -> ChatSession:
    chat = session(drafting(1, 2, 3, EOS))
    asked = request(sampling=SamplingParams(num_logprobs=num_logprobs))
    chat.handle(ChatAsked(replace(asked, resume=resume or ResumePoint())), 0.0)
    chat.handle(PromptReady(PROMPT), 0.0)
    chat.handle(Tick(), 0.001)
    chat.handle(OPENED, 0.1)
    return chat


def test_a_commit_brings_those_of_accepted_drafts_too_with_the_tokens_texts() -> None:
    chat = streaming(2)
    logprobs = (told(1, 1, 13), told(2, 14), told(EOS, 5, EOS))
    actions = chat.handle(Commit(0, 0, 2, (EOS,), logprobs=logprobs), 0.2)
    (commit,) = (action for action in actions if isinstance(action, Committed))
    assert commit.ids == (1, 2, EOS)
    assert [at.chosen for at in commit.logprobs] == [
        ScoredToken(1, -0.5, b" the"),
        ScoredToken(2, -0.5, b" cat"),
        ScoredToken(EOS, -0.5, b""),
    ]
    half = "é".encode()[1:]
    assert commit.logprobs[0].top == (ScoredToken(1, -1.0, b" the"), ScoredToken(13, -1.0, half))


def test_of_an_earlier_run_elsewhere_none_are_known() -> None:
    chat = session()
    asked = request(sampling=SamplingParams(num_logprobs=0))
    asked = replace(asked, resume=ResumePoint("", 2, 8, (1, 2), IDENTITY))
    chat.handle(ChatAsked(asked), 0.0)
    _, _, resumed = chat.handle(PromptReady(PROMPT), 0.0)
    assert resumed == Committed(" the cat", (1, 2), 2, model_identity=IDENTITY)
    chat.handle(OPENED, 0.1)
    commit, *_ = chat.handle(Commit(0, 2, 0, (3,), logprobs=(told(3),)), 0.2)
    assert isinstance(commit, Committed) and len(commit.logprobs) == 1


BAD = {
    "none": (2, ()),
    "of too few tokens": (2, (told(1), told(2))),
    "of other tokens": (2, (told(1), told(2), told(4))),
    "of more tokens": (2, (told(1), told(2), told(3), told(4))),
    "more likely ones than asked for": (1, (told(1), told(2), told(3, 4, 5))),
    "ids that are none": (2, (told(1), told(2), told(3, 9999))),
    "not asked for": (-1, (told(1), told(2), told(3))),
}


@pytest.mark.parametrize(("num_logprobs", "logprobs"), BAD.values(), ids=BAD.keys())
def test_what_the_region_cannot_send_ends_the_chat(
    num_logprobs: int, logprobs: tuple[TokenLogprobs, ...]
) -> None:
    chat = streaming(num_logprobs)
    actions = chat.handle(Commit(0, 0, 2, (3,), logprobs=logprobs), 0.2)
    (failed,) = (action for action in actions if isinstance(action, Failed))
    assert isinstance(failed.error, PeerFaultError)


def opened(actions: list[Action]) -> OpenRegion:
    (found,) = (action for action in actions if isinstance(action, OpenRegion))
    return found


def test_a_prediction_is_tokenized_with_the_prompt_and_goes_up_at_every_opening() -> None:
    chat = session()
    asked = replace(request(), prediction=" the cat sat")
    assert chat.handle(ChatAsked(asked), 0.0) == [
        Tokenize(asked.messages, prediction=" the cat sat")
    ]
    actions = chat.handle(PromptReady(PROMPT, (1, 2, 3)), 0.0)
    first = opened(actions)
    assert (first.prompt, first.prediction) == (PROMPT, (1, 2, 3))
    chat.handle(OPENED, 0.1)
    chat.handle(Commit(0, 0, 0, (1,)), 0.2)
    again = opened(chat.handle(LOST, 0.3))
    assert (again.request.resume.ids, again.prediction) == ((1,), (1, 2, 3))
