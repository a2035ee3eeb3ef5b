"""Targets that are slow, drafts that are, and distances that change, in virtual time: what edges'
drafts bring, and that the controller finds by itself where they do."""

from __future__ import annotations

from dataclasses import replace
from statistics import geometric_mean
from typing import Final

import pytest

from services.edge.session.acceptance import Averages
from services.edge.session.upload_control import DraftMode, UploadPolicy, Uploads
from tests.edge.session.simulation.circumstances import Circumstances
from tests.edge.session.simulation.mesh import Mesh

NEVER: Final = UploadPolicy(uploads=Uploads.NEVER)
SLOW_TARGET: Final = Circumstances(call_s=0.15, row_s=0.005, draft_s=0.05)
"""A model of 1.5 thousand million weights on one core, and one a third of its size."""
SLOW_DRAFT: Final = Circumstances(call_s=0.02, row_s=0.0008, draft_s=0.05)
"""The target has a better machine than the edge."""


def pace(where: Circumstances, *, averages: Averages | None = None) -> float:
    """Over the same chat without drafts of the edge."""
    alone = Mesh(where, upload=NEVER).run()
    return alone.token_s / Mesh(where, averages=averages).run().token_s


@pytest.mark.parametrize("rtt_s", [0.0, 0.02, 0.05])
def test_a_draft_model_a_third_as_slow_pays_within_a_continent(rtt_s: float) -> None:
    chats = [
        replace(SLOW_TARGET, rtt_s=rtt_s, accuracy=0.75, num_tokens=60, seed=seed)
        for seed in range(4)
    ]
    assert geometric_mean(map(pace, chats)) >= 1.3


@pytest.mark.parametrize("speeds", [SLOW_TARGET, SLOW_DRAFT], ids=["slow target", "slow draft"])
@pytest.mark.parametrize("accuracy", [0.0, 0.4, 0.9])
@pytest.mark.parametrize("rtt_s", [0.0, 0.1, 0.25])
@pytest.mark.parametrize("repetition", [0.0, 0.9])
def test_no_reply_is_slower_for_the_edges_drafts(
    rtt_s: float, accuracy: float, speeds: Circumstances, repetition: float
) -> None:
    """Nor is a short one, of which the controller has seen nothing when it ends."""
    chats = [
        replace(
            speeds,
            rtt_s=rtt_s,
            accuracy=accuracy,
            repetition=repetition,
            num_tokens=40,
            seed=seed,
        )
        for seed in range(2)
    ]
    assert geometric_mean(map(pace, chats)) >= 0.98


def test_drafts_slower_than_the_target_are_not_sent_for_long() -> None:
    where = replace(SLOW_DRAFT, rtt_s=0.02, accuracy=0.8, num_tokens=200)
    averages = Averages()
    Mesh(where, averages=averages).run()
    mesh = Mesh(where, averages=averages)
    mesh.run()
    assert mesh.chat.reply is not None
    assert mesh.chat.reply.controller.mode is DraftMode.SERVER_ONLY
    assert mesh.outcome.modes.count(True) <= len(mesh.outcome.modes) // 4


def test_a_distance_that_grows_costs_nothing_and_one_that_shrinks_pays_again() -> None:
    def rtt_at(now: float) -> float:
        return 0.01 if now < 6 or now >= 18 else 0.4

    where = replace(SLOW_TARGET, accuracy=0.6, num_tokens=240, rtt_at=rtt_at)
    mesh = Mesh(where)
    ours = mesh.run()
    alone = Mesh(where, upload=NEVER).run()
    assert alone.token_s / ours.token_s >= 1.1
    assert True in ours.modes and False in ours.modes
    assert mesh.chat.reply is not None
    controller = mesh.chat.reply.controller
    assert controller.round_trip.num_path_changes >= 1
    assert controller.mode is DraftMode.EDGE_DRAFTS
