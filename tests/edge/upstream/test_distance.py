"""A longer way to the region for one chat: when its frames arrive, in which order, and how many may
be on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from outrider.codec.prompt_memory import PromptMemory
from outrider.errors import (
    InvalidRequestError,
    OutriderError,
    OverloadedError,
    PermissionDeniedError,
    UnavailableError,
)
from outrider.testing import eventually
from outrider.v1 import inference_pb2
from services.edge.upstream.distance import MAX_ON_THE_WAY, DistantLink, check_added_rtt
from services.edge.upstream.link import Sink

RTT_MS = 60


class Link:
    """A way to a router that notes what it is told, and when."""

    address = "router:1"

    def __init__(self) -> None:
        self.prompts = PromptMemory(0)
        self.told: list[tuple[str, int, float]] = []
        self.sink: Sink | None = None
        self.refusal: OutriderError | None = None

    def open(self, sink: Sink, frame: inference_pb2.SessionUp) -> int:
        if self.refusal is not None:
            raise self.refusal
        self.sink = sink
        return self._note("open", 7)

    def draft(self, session_id: int, frame: inference_pb2.SessionUp) -> bool:
        raise AssertionError("drafts on a longer way are sent as other frames")

    def send(self, session_id: int, frame: inference_pb2.SessionUp) -> None:
        if self.refusal is not None:
            raise self.refusal
        self._note(f"send {frame.draft.base}", session_id)

    def cancel(self, session_id: int, frame: inference_pb2.SessionUp) -> None:
        self._note("cancel", session_id)

    def forget(self, session_id: int) -> None:
        self._note("forget", session_id)

    def _note(self, what: str, session_id: int) -> int:
        self.told.append((what, session_id, asyncio.get_running_loop().time()))
        return session_id

    @property
    def kinds(self) -> list[str]:
        return [what for what, _, _ in self.told]


class Chat:
    def __init__(self) -> None:
        self.heard: list[tuple[int, float]] = []
        self.lost: list[OutriderError] = []
        self.then: Callable[[], None] = lambda: None

    def region_frame(self, frame: inference_pb2.SessionDown) -> None:
        self.heard.append((frame.commit.base, asyncio.get_running_loop().time()))
        self.then()

    def region_lost(self, error: OutriderError) -> None:
        self.lost.append(error)


def up(number: int) -> inference_pb2.SessionUp:
    return inference_pb2.SessionUp(draft=inference_pb2.Draft(base=number))


def down(number: int) -> inference_pb2.SessionDown:
    return inference_pb2.SessionDown(commit=inference_pb2.Commit(base=number))


async def test_frames_take_half_of_it_each_way_and_keep_their_order() -> None:
    link, chat = Link(), Chat()
    far = DistantLink(link, RTT_MS)
    began = asyncio.get_running_loop().time()
    assert (far.address, far.prompts) == (link.address, link.prompts)
    number = far.open(chat, up(0))
    assert far.draft(number, up(1))
    far.send(number, up(2))
    assert link.told == [], "nothing has arrived"
    await eventually(lambda: len(link.told) == 3)
    assert link.kinds == ["open", "send 1", "send 2"]
    assert all(at - began >= RTT_MS / 2000 - 0.002 for _, _, at in link.told)
    assert link.sink is far
    sent_at = asyncio.get_running_loop().time()
    for base in range(5):
        far.region_frame(down(base))
    assert chat.heard == []
    await eventually(lambda: len(chat.heard) == 5)
    assert [base for base, _ in chat.heard] == [0, 1, 2, 3, 4]
    assert all(at - sent_at >= RTT_MS / 2000 - 0.002 for _, at in chat.heard)


async def test_a_chat_that_left_hears_nothing_and_leaves_nothing() -> None:
    link, chat = Link(), Chat()
    far = DistantLink(link, RTT_MS)
    number = far.open(chat, up(0))
    await eventually(lambda: link.kinds == ["open"])
    for base in range(3):
        far.region_frame(down(base))
    chat.then = lambda: far.forget(number)  # in the middle of what has arrived
    await eventually(lambda: "forget" in link.kinds)
    await asyncio.sleep(RTT_MS / 1000)
    assert [base for base, _ in chat.heard] == [0]
    assert link.told[-1][1] == 7, "the router's own number"


async def test_what_is_cancelled_on_its_way_is_never_opened() -> None:
    link, chat = Link(), Chat()
    far = DistantLink(link, RTT_MS)
    number = far.open(chat, up(0))
    far.cancel(number, up(1))
    await asyncio.sleep(RTT_MS / 1000)
    assert link.told == []


async def test_a_cancel_of_an_open_session_is_not_late() -> None:
    link = Link()
    far = DistantLink(link, RTT_MS)
    number = far.open(Chat(), up(0))
    await eventually(lambda: link.kinds == ["open"])
    far.cancel(number, up(1))
    assert link.kinds == ["open", "cancel"]


@pytest.mark.parametrize("is_open", [False, True])
async def test_a_frame_that_is_refused_at_the_far_end_loses_the_session(is_open: bool) -> None:
    link, chat = Link(), Chat()
    far = DistantLink(link, RTT_MS)
    if not is_open:
        link.refusal = UnavailableError("no router")
    number = far.open(chat, up(0))
    if is_open:
        await eventually(lambda: link.kinds == ["open"])
        link.refusal = OverloadedError("full")
        far.send(number, up(1))
    await eventually(lambda: bool(chat.lost))
    assert chat.lost == [link.refusal]


async def test_what_was_on_the_way_arrives_before_the_loss() -> None:
    link, chat = Link(), Chat()
    far = DistantLink(link, RTT_MS)
    far.open(chat, up(0))
    await eventually(lambda: link.kinds == ["open"])
    far.region_frame(down(1))
    far.region_lost(UnavailableError("gone"))
    await eventually(lambda: bool(chat.lost))
    assert [base for base, _ in chat.heard] == [1]


async def test_so_many_frames_may_be_on_the_way() -> None:
    link, chat = Link(), Chat()
    far = DistantLink(link, 300)
    number = far.open(chat, up(0))
    for _ in range(MAX_ON_THE_WAY - 1):
        far.send(number, up(1))
    with pytest.raises(OverloadedError):
        far.send(number, up(1))
    for _ in range(MAX_ON_THE_WAY):
        far.region_frame(down(1))
    assert chat.lost == []
    far.region_frame(down(1))
    assert [type(it) for it in chat.lost] == [OverloadedError]
    await asyncio.sleep(0.2)
    assert (chat.heard, link.told) == ([], []), "nothing more arrives"


@pytest.mark.parametrize(
    ("added_rtt_ms", "is_allowed", "error"),
    [
        (0, False, None),
        (300, True, None),
        (1, False, PermissionDeniedError),
        (301, True, InvalidRequestError),
        (-1, True, InvalidRequestError),
    ],
)
def test_only_where_it_is_allowed_and_not_too_far(
    added_rtt_ms: int, is_allowed: bool, error: Any
) -> None:
    if error is None:
        check_added_rtt(added_rtt_ms, is_allowed=is_allowed)
    else:
        with pytest.raises(error, match="added_rtt_ms"):
            check_added_rtt(added_rtt_ms, is_allowed=is_allowed)
