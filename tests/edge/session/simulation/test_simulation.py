"""The controller against a replica in virtual time: its costs and gains, and how it settles."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from outrider.session.region import Draft
from services.edge.session.acceptance import Averages
from services.edge.session.speedup_model import (
    SessionConditions,
    with_drafts_s,
    without_drafts_s,
)
from services.edge.session.upload_control import DraftMode, UploadPolicy, Uploads
from tests.edge.session.simulation.circumstances import Circumstances
from tests.edge.session.simulation.mesh import Mesh

NEVER = UploadPolicy(uploads=Uploads.NEVER)
CALL_S, DRAFT_S = 0.03, 0.005


def at(rtt_s: float, accuracy: float, **more: Any) -> Circumstances:
    return replace(Circumstances(rtt_s=rtt_s, accuracy=accuracy, num_tokens=120), **more)


def predicted(where: Circumstances, accuracy: float) -> tuple[float, float]:
    """Seconds per token without and with drafts from the edge, from what is so."""
    known = SessionConditions(where.rtt_s, where.draft_s, where.call_s + where.row_s, where.row_s)
    survival = [accuracy**n for n in range(64)]
    return without_drafts_s(known), with_drafts_s(known, survival)


@pytest.mark.parametrize("repetition", [0.0, 0.9])
@pytest.mark.parametrize("accuracy", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("rtt_s", [0.0, 0.05, 0.25])
def test_nobody_waits_longer_for_it(rtt_s: float, accuracy: float, repetition: float) -> None:
    where = at(rtt_s, accuracy, repetition=repetition, jitter_s=0.002)
    alone = Mesh(where, upload=NEVER).run()
    ours = Mesh(where).run()
    assert ours.token_s <= alone.token_s * 1.02 + 0.002 / where.num_tokens


@pytest.mark.parametrize(("rtt_s", "accuracy"), [(0.02, 0.8), (0.05, 0.9), (0.1, 0.9)])
def test_drafts_go_up_where_they_pay_and_bring_what_is_predicted(
    rtt_s: float, accuracy: float
) -> None:
    where = at(rtt_s, accuracy, num_tokens=240)
    mesh = Mesh(where)
    ours = mesh.run()
    without_drafts_s, with_s = predicted(where, accuracy)
    assert all(ours.modes)
    assert ours.token_s == pytest.approx(with_s, rel=0.15)
    assert ours.token_s < 0.8 * without_drafts_s
    assert mesh.chat.reply is not None
    believed = mesh.chat.reply.controller.predicted_s
    assert believed is not None
    assert believed[0] == pytest.approx(without_drafts_s, rel=0.1)
    assert believed[1] == pytest.approx(with_s, rel=0.25)


@pytest.mark.parametrize(("rtt_s", "accuracy", "call_s"), [(0.25, 0.5, 0.03), (0.1, 0.5, 0.01)])
def test_drafts_stay_here_where_they_bring_nothing(
    rtt_s: float, accuracy: float, call_s: float
) -> None:
    where = at(rtt_s, accuracy, call_s=call_s, row_s=0.02 * call_s, draft_s=0.002)
    mesh = Mesh(where)
    mesh.run(provisional=True)
    assert mesh.chat.reply is not None
    assert mesh.chat.reply.controller.mode is DraftMode.DISPLAY_ONLY
    assert mesh.outcome.modes[-20:].count(True) <= 1, "but for a probe"
    plain = Mesh(where)
    plain.run()
    assert plain.chat.reply is not None
    assert plain.chat.reply.controller.mode is DraftMode.SERVER_ONLY
    tally = plain.chat.reply.controller.counts
    assert tally.drafted < 0.7 * mesh.chat.reply.controller.counts.drafted, "nobody would see them"


@pytest.mark.parametrize("rtt_s", [0.0, 0.05, 0.1, 0.15, 0.25])
@pytest.mark.parametrize("accuracy", [0.4, 0.7])
def test_it_does_not_flap(rtt_s: float, accuracy: float) -> None:
    where = at(rtt_s, accuracy, num_tokens=300, jitter_s=0.01, seed=3)
    mesh = Mesh(where)
    mesh.run(provisional=True)
    assert mesh.chat.reply is not None
    assert mesh.chat.reply.controller.counts.switches <= 2


def test_what_one_chat_learned_serves_the_next() -> None:
    where = at(0.25, 0.3, call_s=0.01, draft_s=0.002, num_tokens=200)
    averages = Averages()
    Mesh(where, averages=averages).run(provisional=True)
    # Somewhat more: drafts that are hardly likely are not made, and not counted.
    assert 0.25 < averages.acceptance.rate(0) < 0.5
    assert averages.acceptance.sources == ("model",)


def test_the_lead_moves_slowly_to_what_is_of_use() -> None:
    mesh = Mesh(at(0.0, 0.9))
    leads = list[int]()

    def look(frame: Draft) -> Draft:
        assert mesh.chat.reply is not None
        leads.append(mesh.chat.reply.controller.lead)
        return frame

    mesh.drop = look
    mesh.run()
    assert leads[0] == 32
    assert leads[-1] == 9, "what a call takes, and one more"
    assert all(abs(b - a) <= 2 * 2 for a, b in pairwise(leads)), "two per commit"
