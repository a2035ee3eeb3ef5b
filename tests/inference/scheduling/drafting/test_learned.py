"""What replies taught: drafts for their own trust group, and for no other."""

from __future__ import annotations

import pytest

from outrider.engines.fake import FakeOptions
from services.inference.scheduling.drafting.learned import LearnedByGroup
from services.inference.scheduling.events import Committed, Drafts
from tests.inference.scheduling.driver import Driver
from tests.inference.scheduling.scheduler.requests import prompts, request

OPTIONS = FakeOptions(min_rows=2, repetition=0.0, fixed_ms=8.0, row_ms=0.1, num_blocks=64)


def commits(salt: bytes, *, num_before: int) -> list[Committed]:
    """Of a chat that others of group "a" have had before."""
    driver = Driver(OPTIONS)
    for number in range(num_before):
        driver.open(request(number, cache_salt=b"a", region_drafts=True))
        driver.finish()
    peer = driver.open(request(99, cache_salt=salt, region_drafts=True))
    driver.finish()
    return peer.commits


def test_a_reply_is_drafted_from_those_of_its_group() -> None:
    told = commits(b"a", num_before=4)
    assert len(told) < 0.7 * len(commits(b"a", num_before=0))


@pytest.mark.parametrize("salt", [b"b", b""])
def test_for_another_group_it_is_drafted_as_in_an_empty_house(salt: bytes) -> None:
    busy, empty = commits(salt, num_before=4), commits(salt, num_before=0)
    assert [(c.base, c.accepted, c.ids) for c in busy] == [
        (c.base, c.accepted, c.ids) for c in empty
    ]


def test_how_good_edges_are_is_known_of_their_group_alone() -> None:
    driver = Driver(OPTIONS)
    for number, prompt in enumerate(prompts(6)):
        wrong = Drafts(0, 0, (5, 5, 5))
        driver.open(request(number, prompt, cache_salt=b"a", drafts=wrong))
        driver.finish()
    learned = driver.scheduler._learned
    assert learned.of(b"a").edge.rate < learned.of(b"b").edge.rate == learned.of(b"").edge.rate


def test_groups_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.inference.scheduling.drafting.learned.MAX_SALTS", 3)
    learned = LearnedByGroup()
    first = learned.of(b"1").edge
    for group in range(1, 5):
        learned.of(b"%d" % group)
    assert len(learned._edges) == 3 and learned.of(b"1").edge is not first
