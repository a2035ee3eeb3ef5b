"""From chats with a slow target to figures, on made-up chats whose answers are known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bench.harness import Run
from bench.harness.readme import regenerated
from bench.wan.measure import Measured
from bench.wan.pair import (
    DRAFT,
    TARGET,
    acceptance,
    add_pair_tables,
    definitions,
    unequal_replies,
    uploading_share,
)
from bench.wan.plan import (
    ALWAYS,
    COPIES,
    OURS,
    PAIR,
    PAIR_QUICK,
    PLAIN,
    REGION_DRAFTER,
    REGION_SUFFIX,
    Cell,
    Scheme,
    Size,
)
from bench.wan.report import keep_samples, keep_settings
from bench.wan.results import Results
from bench.wan.samples import Batch, Sample
from outrider.models.definitions import DefinitionsSource, read_definitions
from outrider.session.types import SpeculationStats

CALL_MS = 150.0
NUM_TOKENS = 31


def sample(pace: float, rtt_ms: float, ids: tuple[int, ...] | None = None) -> Sample:
    """A chat that is `pace` times as fast as plain streaming, two tokens per commit if faster."""
    size = 2 if pace > 1 else 1
    step_ms = size * CALL_MS / pace
    counts = range(1, NUM_TOKENS + 1, size)
    drafts = pace > 1
    return Sample(
        ids=ids or tuple(range(NUM_TOKENS)),
        visible_ms=500.0 if drafts else 700.0 + rtt_ms,
        commits=tuple((700.0 + rtt_ms + n * step_ms, count) for n, count in enumerate(counts)),
        num_chars=100,
        num_drafts=60,
        num_accepted=15 if drafts else 0,
        edge=SpeculationStats(
            sent_tokens=25,
            checked_tokens=20,
            right_tokens=15,
            commits_with_uploads=12,
            commits_without_uploads=4,
            draft_ms=45.0,
        )
        if drafts
        else SpeculationStats(),
    )


def paces(scheme: Scheme, rtt_ms: float, number: int) -> float:
    """Outrider falls from 1.5 at no distance to 0.9 at 250 ms, the second chat is faster."""
    if scheme in (OURS, ALWAYS):
        return 1.5 - 0.6 * rtt_ms / 250 + 0.1 * number
    return 1.0


def results_of(size: Size = PAIR, pace: Callable[..., float] = paces) -> Results:
    return Results(
        [
            Batch(
                scheme,
                Cell(rtt_ms, 1, 0.0),
                0,
                number,
                (sample(pace(scheme, rtt_ms, number), rtt_ms),),
            )
            for part in size.parts
            for rtt_ms in part.rtts_ms
            for scheme, count in part.chats.items()
            for number in range(count)
        ]
    )


def test_a_round_asks_each_scheme_once_per_prompt_and_distance() -> None:
    for size in (PAIR, PAIR_QUICK):
        asked = [(rtt_ms, s) for p in size.parts for rtt_ms in p.rtts_ms for s in p.chats]
        assert len(asked) == len(set(asked)), "a second batch would take the first one's place"
        for part in size.parts:
            assert part.chats[PLAIN] == part.num_prompts, "all are held against it"
    assert {PLAIN, REGION_SUFFIX, REGION_DRAFTER, COPIES, OURS, ALWAYS} == set(PAIR.schemes)
    assert PAIR.rtts_ms == (0.0, 20.0, 50.0, 100.0, 150.0, 250.0)


def test_a_reply_that_differs_is_named() -> None:
    assert unequal_replies(results_of()) == []
    batches = [batch for scheme in PAIR.schemes for batch in results_of().batches(scheme)]
    at = next(n for n, b in enumerate(batches) if b.scheme == OURS and b.cell.rtt_ms == 50.0)
    wrong = sample(1.2, 50.0, ids=(*range(NUM_TOKENS - 1), 99))
    batches[at] = replace(batches[at], samples=(wrong,))
    assert unequal_replies(Results(batches)) == [f"{OURS.name}, RTT 50 ms, round 0, prompt 0"]


def test_shares_are_of_all_chats_together() -> None:
    chats = results_of().samples(OURS)
    assert acceptance(chats) == pytest.approx(0.75)
    assert uploading_share(chats) == pytest.approx(0.75)
    assert acceptance(results_of().samples(PLAIN)) is None
    assert uploading_share([]) is None


def test_the_tables_and_the_record_say_what_was_found(tmp_path: Path) -> None:
    results, measured = results_of(), Measured(drafter="ready", num_rounds=1)
    run = Run("wan_pair", False, "python -m bench.wan --pair")
    keep_samples(run, results)
    keep_settings(run, PAIR, measured)
    add_pair_tables(run, results)
    run.finish(tmp_path)
    page = regenerated("<!-- bench:wan_pair -->\n<!-- /bench:wan_pair -->\n", tmp_path)
    assert "| (f) Outrider | 6 | 1.7" in page
    assert "(c) region runs the drafter" in page


def test_services_are_told_of_both_models() -> None:
    tables = definitions(Path("/t.gguf"), Path("/d.gguf"))
    specs = {
        spec.name: spec
        for spec in read_definitions(tables, DefinitionsSource("here", lambda text: text))
    }
    assert specs[TARGET].draft == DRAFT
    assert specs[DRAFT].engine.max_fixed_rows == 0
