"""What a controller does with what it is told, commit by commit."""

from __future__ import annotations

import pytest

from outrider.session.region import Pace
from services.edge.session.acceptance import Averages, DraftOutcome
from services.edge.session.draft_chain import DraftProgress
from services.edge.session.upload_control import (
    DraftMode,
    UploadController,
    UploadPolicy,
    Uploads,
)

RIGHT = DraftOutcome("model", 0, 0, 0.8, True)
WRONG = DraftOutcome("model", 0, 0, 0.8, False, first_wrong=True)


class Chat:
    """A controller, and a region whose round trip and interval are given."""

    def __init__(
        self,
        *,
        rtt_s: float = 0.02,
        sends: bool = True,
        shows: bool = True,
        policy: UploadPolicy | None = None,
        averages: Averages | None = None,
    ) -> None:
        self.rtt_s, self.now = rtt_s, 0.0
        averages = averages or Averages()
        self.controller = UploadController(
            policy or UploadPolicy(), averages, max_lead=32, sends=sends, shows=shows
        )
        self.controller.opened(self.controller.round_trip.next_echo(0.0), 0.0, 8, rtt_s)
        self.controller.drafted(DraftProgress(False, 100, 0.5, 100))

    def commit(
        self, *outcomes: DraftOutcome, interval_s: float = 0.03, overload_level: int = 0
    ) -> None:
        """A commit that answers drafts sent a round trip before."""
        controller = self.controller
        number = controller.round_trip.next_echo(self.now)
        self.now += interval_s + self.rtt_s
        pace = Pace(interval_s, 0.0006, 64, overload_level, number, interval_s)
        controller.checked(outcomes, None)
        controller.committed(pace, 1, on_its_own=True, now=self.now)

    def commits(self, count: int, *outcomes: DraftOutcome, interval_s: float = 0.03) -> None:
        for _ in range(count):
            self.commit(*outcomes, interval_s=interval_s)


@pytest.mark.parametrize(
    ("sends", "shows", "mode", "lead"),
    [
        (True, True, DraftMode.EDGE_DRAFTS, 32),
        (True, False, DraftMode.EDGE_DRAFTS, 32),
        (False, True, DraftMode.DISPLAY_ONLY, 32),
        (False, False, DraftMode.SERVER_ONLY, 0),
    ],
)
def test_what_the_chat_asked_for_is_the_limit(
    sends: bool, shows: bool, mode: DraftMode, lead: int
) -> None:
    chat = Chat(sends=sends, shows=shows)
    assert (chat.controller.mode, chat.controller.lead) == (mode, lead)
    chat.commits(200, RIGHT)
    assert chat.controller.mode is mode
    assert chat.controller.sends is sends


def test_drafts_that_are_wrong_end_it_and_right_ones_begin_it_again() -> None:
    chat = Chat(rtt_s=0.1)
    modes = []
    for count, outcomes in ((23, [WRONG]), (1, [WRONG]), (300, [RIGHT] * 3)):
        chat.commits(count, *outcomes)
        modes.append(chat.controller.mode)
    # Not before enough was seen.
    assert modes == [DraftMode.EDGE_DRAFTS, DraftMode.DISPLAY_ONLY, DraftMode.EDGE_DRAFTS]
    assert chat.controller.counts.switches == 2
    assert (
        chat.controller.counts.commits_with_uploads + chat.controller.counts.commits_without_uploads
        == 324
    )


def test_between_the_bounds_it_stays_what_it_is() -> None:
    """A gain that is too small to begin is enough to go on."""
    going, starting = Chat(rtt_s=0.17), Chat(rtt_s=0.17)
    starting.commits(24, WRONG)
    assert starting.controller.mode is DraftMode.DISPLAY_ONLY
    for chat in (going, starting):
        for n in range(1500):
            chat.commit(WRONG if n % 4 == 0 else RIGHT)
    without_drafts_s, with_s = going.controller.predicted_s or (0.0, 0.0)
    assert 0.02 < 1 - with_s / without_drafts_s < 0.1
    assert going.controller.mode is DraftMode.EDGE_DRAFTS
    assert starting.controller.mode is DraftMode.DISPLAY_ONLY


def test_one_commit_in_fifty_is_a_probe() -> None:
    chat = Chat(rtt_s=0.3, shows=False)
    chat.commits(24, WRONG)
    assert chat.controller.mode is DraftMode.SERVER_ONLY
    sends = []
    for _ in range(200):
        chat.commit(WRONG)
        sends.append(chat.controller.sends)
        assert (chat.controller.lead > 0) == sends[-1]
    assert sends.count(True) == 4
    assert chat.controller.mode is DraftMode.SERVER_ONLY, "a probe is no change of mind"


def test_an_overloaded_region_gets_no_drafts_at_once_and_no_probes() -> None:
    chat = Chat()
    chat.commit(RIGHT, overload_level=1)
    assert (chat.controller.mode, chat.controller.sends) == (DraftMode.DISPLAY_ONLY, False)
    for _ in range(120):
        chat.commit(RIGHT, overload_level=2)
        assert not chat.controller.sends
    chat.commit(RIGHT)
    assert chat.controller.mode is DraftMode.EDGE_DRAFTS


@pytest.mark.parametrize(
    ("uploads", "mode"),
    [(Uploads.ALWAYS, DraftMode.EDGE_DRAFTS), (Uploads.NEVER, DraftMode.DISPLAY_ONLY)],
)
def test_it_can_be_decided_beforehand(uploads: Uploads, mode: DraftMode) -> None:
    chat = Chat(rtt_s=0.3, policy=UploadPolicy(uploads=uploads))
    chat.commits(120, WRONG)
    assert chat.controller.mode is mode
    assert chat.controller.counts.switches == 0


def test_without_a_round_trip_nothing_is_decided() -> None:
    controller = UploadController(UploadPolicy(), Averages(), max_lead=32, sends=True, shows=True)
    controller.opened(0, 0.0, 0, 1.0)
    for _ in range(100):
        controller.checked((WRONG,), 1)
        controller.committed(Pace(0.03), 1, on_its_own=True, now=2.0)
    assert controller.conditions is None
    assert controller.mode is DraftMode.EDGE_DRAFTS


def test_a_chat_decides_at_once_by_what_earlier_ones_showed() -> None:
    averages = Averages()
    first = Chat(averages=averages)
    first.commits(8, WRONG)
    assert first.controller.mode is DraftMode.EDGE_DRAFTS, "nothing was known, and little is"
    first.commits(60, WRONG)
    second = Chat(averages=averages)
    assert not second.controller.sends
    assert second.controller.counts.switches == 0
    assert Chat(averages=averages, shows=False).controller.lead == 0, "nobody wants drafts"
    second.commits(60, RIGHT)
    assert second.controller.mode is DraftMode.EDGE_DRAFTS, "its own figures count"
