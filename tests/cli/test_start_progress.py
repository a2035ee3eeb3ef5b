"""What is said of a mesh that starts: how far it is, and for how long it may still take."""

from __future__ import annotations

import pytest

from outrider.cli.local.start_progress import StartProgress
from outrider.engines.load_stage import LoadStage

PHASES = [
    {"east-0": "inference", "west-0": "inference", "tokenizer": "tokenizer"},
    {"router": "router"},
    {"edge": "edge"},
]
READ_S, COMPILED_S, COMPARED_S, WARMED_S = 1.5, 2.5, 0.5, 0.5
LATER_S = 1.5 + 8.5
"""Typical times of a replica's stages, after 2 s before the first, and of router and edge."""


def begun(slowness: float = 1.0) -> StartProgress:
    """The replicas compile since the moment 3.5 * slowness; the tokenizer is ready."""
    progress = StartProgress(PHASES)
    for name in PHASES[0]:
        progress.enter(name, "", 0.0)
    progress.ready("tokenizer", 3 * slowness)
    for name in ("east-0", "west-0"):
        progress.enter(name, LoadStage.READ, 2 * slowness)
        progress.enter(name, LoadStage.COMPILE, 3.5 * slowness)
    return progress


def test_nothing_is_said_of_time_before_a_stage_has_ended() -> None:
    progress = StartProgress(PHASES)
    assert progress.line(0.0) == "0 of 5 processes ready"
    progress.enter("east-0", "", 0.0)
    assert progress.line(9.0) == "0 of 5 processes ready; east-0: starting"


@pytest.mark.parametrize("slowness", [1.0, 4.0])
def test_time_left_follows_from_how_fast_this_start_is(slowness: float) -> None:
    left_s = slowness * (COMPILED_S + COMPARED_S + WARMED_S + LATER_S)
    assert begun(slowness).line(3.5 * slowness) == (
        f"1 of 5 processes ready; east-0: compiling the model; about {left_s:.0f} s left"
    )


def test_time_passes_but_a_stage_that_takes_longer_ends_no_earlier() -> None:
    progress = begun()
    later_s = COMPARED_S + WARMED_S + LATER_S
    assert progress.line(4.5).endswith(f"about {COMPILED_S - 1 + later_s:.0f} s left")
    assert progress.line(60.0).endswith(f"about {later_s:.0f} s left")


def test_the_process_that_takes_longest_is_named() -> None:
    progress = begun()
    progress.enter("east-0", LoadStage.WARM_UP, 4.0)
    assert "; west-0: compiling the model; " in progress.line(4.0)


def test_a_stage_without_a_typical_time_says_nothing_of_the_time_left_and_counts_for_none() -> None:
    progress = StartProgress(PHASES)
    progress.enter("east-0", "", 0.0)
    progress.enter("east-0", "fetching the model 40 %", 2.0)
    assert progress.line(90.0) == ("0 of 5 processes ready; east-0: fetching the model 40 %")
    progress.enter("east-0", LoadStage.READ, 100.0)
    west_s = 2.0 + READ_S + COMPILED_S + COMPARED_S + WARMED_S  # it has yet to be started
    assert progress.line(100.0).endswith(f"about {west_s + LATER_S:.0f} s left")


def test_who_waits_for_others_takes_no_time_of_his_own() -> None:
    progress = StartProgress([{"east-0": "inference", "router": "router"}])
    for name in ("east-0", "router"):
        progress.enter(name, "", 0.0)
    progress.enter("router", "replicas: 2 CONNECTING", 1.5)
    left_s = 2.0 - 1.5 + READ_S + COMPILED_S + COMPARED_S + WARMED_S
    assert progress.line(1.5).endswith(f"east-0: starting; about {left_s:.0f} s left")


def test_a_last_stage_that_takes_longer_than_expected_has_no_time_left() -> None:
    progress = begun()
    for name in ("east-0", "west-0"):
        progress.ready(name, 6.0)
    progress.enter("router", "", 6.0)
    progress.ready("router", 7.5)
    progress.enter("edge", "", 7.5)
    progress.enter("edge", "the drafter loads its model", 10.0)
    known = "4 of 5 processes ready; edge: the drafter loads its model"
    assert progress.line(11.0) == f"{known}; about 5 s left"
    assert progress.line(30.0) == known
    progress.ready("edge", 31.0)
    assert progress.line(31.0) == "5 of 5 processes ready"
