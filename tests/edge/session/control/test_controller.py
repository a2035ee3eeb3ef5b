"""What a controller does with what it is told, commit by commit."""

from __future__ import annotations

import pytest

from services.edge.session.control.acceptance import Averages, Outcome
from services.edge.session.control.controller import (
    Controller,
    ControlPolicy,
    Mode,
    Uploads,
)
from services.edge.session.control.pace import OwnPace, Pace, PaceBook
from services.edge.session.drafting import Progress

RIGHT = Outcome("model", 0, 0, 0.8, True)
WRONG = Outcome("model", 0, 0, 0.8, False, first_wrong=True)


class Chat:
    """A controller, and a region whose round trip and interval are given."""

    def __init__(
        self,
        *,
        rtt_s: float = 0.02,
        sends: bool = True,
        shows: bool = True,
        policy: ControlPolicy | None = None,
        averages: Averages | None = None,
    ) -> None:
        self.rtt_s, self.now = rtt_s, 0.0
        averages = averages or Averages()
        self.controller = Controller(
            policy or ControlPolicy(), averages, max_lead=32, sends=sends, shows=shows
        )
        self.controller.opened(self.controller.number(0.0), 0.0, 8, rtt_s)
        self.controller.drafted(Progress(False, 100, 0.5, 100))

    def commit(self, *outcomes: Outcome, interval_s: float = 0.03, overload_level: int = 0) -> None:
        """A commit that answers drafts sent a round trip before."""
        controller = self.controller
        number = controller.number(self.now)
        self.now += interval_s + self.rtt_s
        pace = Pace(interval_s, 0.0006, 1, 64, overload_level, number, interval_s)
        controller.checked(outcomes, None)
        controller.committed(pace, 1, on_its_own=True, by_drafts=False, now=self.now)

    def commits(self, count: int, *outcomes: Outcome, interval_s: float = 0.03) -> None:
        for _ in range(count):
            self.commit(*outcomes, interval_s=interval_s)


@pytest.mark.parametrize(
    ("sends", "shows", "mode", "lead"),
    [
        (True, True, Mode.EDGE_DRAFTS, 32),
        (True, False, Mode.EDGE_DRAFTS, 32),
        (False, True, Mode.DISPLAY_ONLY, 32),
        (False, False, Mode.SERVER_ONLY, 0),
    ],
)
def test_what_the_chat_asked_for_is_the_limit(
    sends: bool, shows: bool, mode: Mode, lead: int
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
    assert modes == [Mode.EDGE_DRAFTS, Mode.DISPLAY_ONLY, Mode.EDGE_DRAFTS]
    assert chat.controller.tally.switches == 2
    assert chat.controller.tally.sending_rounds + chat.controller.tally.holding_rounds == 324


def test_between_the_bounds_it_stays_what_it_is() -> None:
    """A gain that is too small to begin is enough to go on."""
    going, starting = Chat(rtt_s=0.17), Chat(rtt_s=0.17)
    starting.commits(24, WRONG)
    assert starting.controller.mode is Mode.DISPLAY_ONLY
    for chat in (going, starting):
        for n in range(1500):
            chat.commit(WRONG if n % 4 == 0 else RIGHT)
    alone_s, with_s = going.controller.predicted_s or (0.0, 0.0)
    assert 0.02 < 1 - with_s / alone_s < 0.1
    assert going.controller.mode is Mode.EDGE_DRAFTS
    assert starting.controller.mode is Mode.DISPLAY_ONLY


def test_one_commit_in_fifty_is_a_probe() -> None:
    chat = Chat(rtt_s=0.3, shows=False)
    chat.commits(24, WRONG)
    assert chat.controller.mode is Mode.SERVER_ONLY
    sends = []
    for _ in range(200):
        chat.commit(WRONG)
        sends.append(chat.controller.sends)
        assert (chat.controller.lead > 0) == sends[-1]
    assert sends.count(True) == 4
    assert chat.controller.mode is Mode.SERVER_ONLY, "a probe is no change of mind"


def test_an_overloaded_region_gets_no_drafts_at_once_and_no_probes() -> None:
    chat = Chat()
    chat.commit(RIGHT, overload_level=1)
    assert (chat.controller.mode, chat.controller.sends) == (Mode.DISPLAY_ONLY, False)
    for _ in range(120):
        chat.commit(RIGHT, overload_level=2)
        assert not chat.controller.sends
    chat.commit(RIGHT)
    assert chat.controller.mode is Mode.EDGE_DRAFTS


@pytest.mark.parametrize(
    ("uploads", "mode"), [(Uploads.ALWAYS, Mode.EDGE_DRAFTS), (Uploads.NEVER, Mode.DISPLAY_ONLY)]
)
def test_it_can_be_decided_beforehand(uploads: Uploads, mode: Mode) -> None:
    chat = Chat(rtt_s=0.3, policy=ControlPolicy(uploads=uploads))
    chat.commits(120, WRONG)
    assert chat.controller.mode is mode
    assert chat.controller.tally.switches == 0


def test_without_a_round_trip_nothing_is_decided() -> None:
    controller = Controller(ControlPolicy(), Averages(), max_lead=32, sends=True, shows=True)
    controller.opened(0, 0.0, 0, 1.0)
    for _ in range(100):
        controller.checked((WRONG,), 1)
        controller.committed(Pace(0.03), 1, on_its_own=True, by_drafts=False, now=2.0)
    assert controller.conditions is None
    assert controller.mode is Mode.EDGE_DRAFTS


def test_a_chat_decides_at_once_by_what_earlier_ones_showed() -> None:
    averages = Averages()
    first = Chat(averages=averages)
    first.commits(8, WRONG)
    assert first.controller.mode is Mode.EDGE_DRAFTS, "nothing was known, and little is"
    first.commits(60, WRONG)
    second = Chat(averages=averages)
    assert not second.controller.sends
    assert second.controller.tally.switches == 0
    assert Chat(averages=averages, shows=False).controller.lead == 0, "nobody wants drafts"
    second.commits(60, RIGHT)
    assert second.controller.mode is Mode.EDGE_DRAFTS, "its own figures count"


def test_a_chat_knows_what_regions_found_by_themselves_in_earlier_ones() -> None:
    average = OwnPace()
    before = PaceBook(average)
    assert before.own_tokens == 1.0
    for _ in range(60):
        before.committed(Pace(0.03), 3, on_its_own=True, by_drafts=False)
    after = PaceBook(average)
    assert after.own_tokens == pytest.approx(3.0, abs=0.2)
    for _ in range(60):
        after.committed(Pace(0.03), 1, on_its_own=True, by_drafts=False)
    assert after.own_tokens == pytest.approx(1.0, abs=0.2), "its own is what counts"


def test_the_pace_counts_what_the_region_finds_by_itself() -> None:
    book = PaceBook()
    for _ in range(60):
        book.committed(Pace(0.03), 3, on_its_own=True, by_drafts=False)
        book.committed(Pace(0.03), 1, on_its_own=False, by_drafts=False)
    assert book.own_tokens == pytest.approx(3.0, abs=0.1)
    book.committed(Pace(), 1, on_its_own=False, by_drafts=False)
    assert book.interval_s == pytest.approx(0.03), "a commit that says nothing changes nothing"


def test_the_rows_of_drafts_are_no_part_of_the_interval_without_them() -> None:
    book = PaceBook()
    for _ in range(60):
        book.committed(Pace(0.05, 0.005), 5, on_its_own=False, by_drafts=True)
    assert book.interval_s == pytest.approx(0.03, abs=0.001)


def test_the_time_of_a_draft_is_a_ratio_of_sums() -> None:
    book = PaceBook()
    assert book.draft_s == 0.0
    for _ in range(100):
        book.drafted(9, 0.009)
        book.drafted(1, 0.021)
    assert book.draft_s == pytest.approx(0.003, rel=0.1)
