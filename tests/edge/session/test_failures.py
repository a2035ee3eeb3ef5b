"""What goes wrong in a chat ends it with a typed error, and nothing follows."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from outrider.codec.tokens import ids_checksum
from outrider.errors import (
    DeadlineError,
    PeerFaultError,
    PromptTooLongError,
    UnavailableError,
    VocabularyMismatchError,
)
from outrider.session.client import Failed
from outrider.session.region import Commit
from outrider.session.types import FinishReason
from services.edge.session.events import (
    ChatAsked,
    Finish,
    Input,
    OpenRegion,
    PromptReady,
    RegionDone,
    RegionFailed,
    RegionOpened,
    Tick,
)
from services.edge.session.machine import ChatSession, SessionState
from tests.edge.session.toolkit import DIGEST, EOS, PROMPT, in_state, request, session


def failure(chat: ChatSession, *inputs: Input, now: float = 0.0) -> type[Exception]:
    actions = [action for item in inputs for action in chat.handle(item, now)]
    errors = [action.error for action in actions if isinstance(action, Failed)]
    assert len(errors) == 1
    assert chat.error is errors[0]
    assert actions[-1] == Finish()
    return type(errors[0])


def too_long() -> type[Exception]:
    return failure(in_state(SessionState.TOKENIZING), PromptReady((1,) * 64))


def wrong_vocabulary() -> type[Exception]:
    chat = in_state(SessionState.OPENING)
    kind = failure(chat, RegionOpened(3, 0, "r", "us", b"\xff" * 32))
    assert DIGEST.hex() in str(chat.error)
    assert "ff" * 32 in str(chat.error)
    return kind


def no_request() -> type[Exception]:
    return failure(in_state(SessionState.AWAITING), Tick(), now=10.0)


def deadline_while_tokenizing() -> type[Exception]:
    chat = session()
    chat.handle(ChatAsked(request(deadline_ms=100)), 0.0)
    return failure(chat, PromptReady(PROMPT), now=0.2)


def region_misses_deadline() -> type[Exception]:
    chat = session()
    chat.handle(ChatAsked(request(deadline_ms=100)), 0.0)
    opening = chat.handle(PromptReady(PROMPT), 0.04)[0]
    assert isinstance(opening, OpenRegion)
    assert opening.deadline_ms == 60
    return failure(chat, Tick(), now=1.1)


def wrong_end() -> type[Exception]:
    return failure(in_state(SessionState.STREAMING), RegionDone(FinishReason.STOP, 5))


def other_tokens() -> type[Exception]:
    chat = in_state(SessionState.STREAMING)
    return failure(chat, RegionDone(FinishReason.STOP, 0, checksum=ids_checksum(DIGEST, [7])))


def past_the_end() -> type[Exception]:
    return failure(in_state(SessionState.STREAMING), Commit(0, 0, 0, (EOS, 1)))


def region_lost() -> type[Exception]:
    return failure(in_state(SessionState.STREAMING), RegionFailed(UnavailableError("lost")))


@pytest.mark.parametrize(
    ("scene", "error"),
    [
        (too_long, PromptTooLongError),
        (wrong_vocabulary, VocabularyMismatchError),
        (no_request, DeadlineError),
        (deadline_while_tokenizing, DeadlineError),
        (region_misses_deadline, DeadlineError),
        (wrong_end, PeerFaultError),
        (other_tokens, PeerFaultError),
        (past_the_end, PeerFaultError),
        (region_lost, UnavailableError),
    ],
    ids=lambda value: value.__name__,
)
def test_what_goes_wrong_ends_in_a_typed_error(
    scene: Callable[[], type[Exception]], error: type[Exception]
) -> None:
    assert scene() is error
