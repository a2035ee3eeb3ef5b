"""From chats to figures, on made-up chats whose answers are known."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.harness import TOO_FEW, Run
from bench.harness.prompts import load_prompts
from bench.harness.readme import regenerated
from bench.relay.lane import Traffic
from bench.wan.measure import Measured
from bench.wan.plan import (
    CORE,
    FULL,
    KINDS,
    OURS,
    QUICK,
    REGION_DRAFTER,
    SCHEMES,
    Cell,
    Scheme,
    Size,
)
from bench.wan.report import add_tables, keep_samples, keep_settings
from bench.wan.results import Results, Selection
from bench.wan.samples import Batch, CpuSpent, Reader, Sample, Word
from outrider.client import Committed, Provisional, Retracted

RTTS_MS = (0.0, 100.0)
STEP_MS = 20.0


def sample(first_ms: float, token_ms: float, count: int = 11, visible_ms: float = 0.0) -> Sample:
    return Sample(
        ids=tuple(range(count)),
        visible_ms=visible_ms or first_ms,
        commits=tuple((first_ms + n * token_ms, n + 1) for n in range(count)),
        word=Word(visible_ms or first_ms, first_ms, first_ms, bool(visible_ms), not visible_ms),
        num_chars=100,
        erased_chars=10,
        ahead=((3.0, 30), (120.0, 10)),
        num_drafts=8,
        num_accepted=5,
    )


def token_ms(scheme: Scheme) -> float:
    """Ours is a quarter faster than plain streaming."""
    return STEP_MS / 1.25 if scheme == OURS else STEP_MS


def batches() -> list[Batch]:
    made = []
    for scheme, rtt_ms, sessions in itertools.product(SCHEMES, RTTS_MS, (1, 4)):
        visible_ms = 12.0 if scheme == OURS else 0.0
        one = sample(50 + rtt_ms, token_ms(scheme), visible_ms=visible_ms)
        cpu_s = 2.0 if scheme.drafts_in_region else 1.0
        edge_s = 0.5 if scheme == OURS else 0.1
        draft_s = 1.0 if scheme.drafts_in_region else 0.0
        made.append(
            Batch(
                scheme,
                Cell(rtt_ms, sessions, 0.0),
                turn=0,
                first=0,
                samples=(one,) * sessions,
                spent=CpuSpent(cpu_s, draft_s, edge_s),
                up=Traffic(packets=sessions, num_bytes=11 * sessions),
                down=Traffic(packets=2 * sessions, num_bytes=22 * sessions),
            )
        )
    return made


def test_a_chat_is_read_as_its_reader_sees_it() -> None:
    reader = Reader()
    reader.take(Provisional(0, 0, "He", 0.5), 10.0)
    reader.take(Retracted(0), 20.0)
    reader.take(Provisional(0, 0, "It is", 0.5), 30.0)
    reader.take(Provisional(0, 3, "was so", 0.5), 40.0)
    reader.take(Committed("It was", (1, 2), 2), 50.0)
    reader.take(Committed(" so", (3,), 3), 70.0)
    seen = reader.sample(4, 2)
    assert (seen.visible_ms, seen.committed_ms) == (10.0, 50.0)
    assert (seen.num_chars, seen.erased_chars, seen.early_chars) == (9, 4, 9)
    assert seen.ahead == ((20.0, 3), (10.0, 3), (30.0, 3))
    assert seen.provisional_chars == 13
    assert seen.word == Word(10.0, 30.0, 50.0, is_early=True, is_right=False)
    assert (seen.whole_ms, seen.token_ms, seen.num_later_commits) == (70.0, 10.0, 1)


def test_a_reply_that_came_at_once_has_no_pace() -> None:
    reader = Reader()
    reader.take(Committed("", (1, 2), 2), 5.0)
    seen = reader.sample(0, 0)
    assert (seen.token_ms, seen.visible_ms, seen.word) == (None, 5.0, None)


@given(st.lists(st.tuples(st.integers(0, 3), st.text("ab ", max_size=5)), max_size=20))
def test_every_provisional_character_stays_or_is_taken_back(steps: list[tuple[int, str]]) -> None:
    """Committed characters of a reply of which the provisional ones are a guess, or not."""
    reply, reader, final, shown, num_shown = "ab ba ab ba ab ba", Reader(), 0, "", 0
    for at, (more, guess) in enumerate(steps):
        reader.take(Provisional(0, 0, guess, 0.5), float(at))
        num_shown, shown = num_shown + len(guess), guess
        text = reply[final : final + more]
        final += len(text)
        if shown[: len(text)] != text[: len(shown)]:
            reader.take(Retracted(0), at + 0.25)
        reader.take(Committed(text, (1,), at + 1), at + 0.5)
    reader.take(Retracted(0), float(len(steps)))
    reader.take(Committed("", (1,), len(steps) + 1), len(steps) + 0.5)
    seen = reader.sample(0, 0)
    assert seen.provisional_chars == num_shown
    assert seen.num_chars == final and seen.early_chars <= final
    assert all(ahead_ms == 0.5 for ahead_ms, _ in seen.ahead)


def test_schemes_are_compared_chat_by_chat() -> None:
    results = Results(batches())
    assert results.rtts_ms() == list(RTTS_MS)
    far = Selection(100.0, 1)
    assert results.pace_ratios(OURS, far) == pytest.approx([1.25])
    assert results.pace_ratios(OURS, Selection(sessions=4)) == pytest.approx([1.25] * 2)
    assert results.capacity_ratio(OURS, REGION_DRAFTER, Selection(100.0, 4)) == 2.0
    assert results.capacity_ratio(OURS, REGION_DRAFTER, Selection(50.0)) == 0.0
    assert results.cpu_ms_per_token(OURS, Selection(0.0, 4)) == pytest.approx((1000 / 44, 500 / 44))
    sent = results.bytes_per_token(OURS)
    assert (sent["up"], sent["down"]) == (1.0, 2.0)
    assert sent["up wire"] == pytest.approx(1 + 52 / 11)


def test_exact_replies_are_counted() -> None:
    results = Results(batches())
    truth = {(0, 0.0, number): tuple(range(11)) for number in range(4)}
    assert results.num_exact(OURS, truth) == (10, 10)
    truth[0, 0.0, 3] = (1,)
    assert results.num_exact(OURS, truth) == (8, 10)


def test_a_run_is_reported_whole(tmp_path: Path) -> None:
    results, measured = Results(batches()), Measured(seconds=10.0, relay_cpu_s=1.0)
    measured.relay.left(0.5)
    exact = {scheme.name: "10 of 10" for scheme in SCHEMES}
    run = Run("wan", quick=False, command="python -m bench.wan")
    add_tables(run, results, measured, exact)
    run.finish(tmp_path)
    record = json.loads((tmp_path / "wan.json").read_text(encoding="utf-8"))
    paces = next(t for t in record["tables"] if t["title"].startswith("Pace of committed tokens"))
    rows = {row[0]: row[1:] for row in paces["rows"]}
    assert rows[OURS.name][2].startswith("1.25")
    words = next(t for t in run.tables if t.title.startswith("Time from asking"))
    assert words.rows[-1][:4] == (100, 1, "150", TOO_FEW)
    assert words.rows[-1][4] == "12.0", "the first word shown, right or wrong"
    shown = next(t for t in run.tables if t.title.startswith("Text that Outrider showed"))
    assert str(shown.rows[0][3]).startswith("1.00 (") and str(shown.rows[0][4]).startswith("0 (")
    assert shown.rows[0][5] == "0.200", "taken back"
    spent = next(t for t in run.tables if t.title.startswith("Committed tokens per second"))
    assert spent.rows[-1][0] == 4 and spent.rows[-1][3] == 2.0
    costs = next(t for t in run.tables if t.title.startswith("CPU time per committed token"))
    (of_ours,) = [row for row in costs.rows if row[0] == OURS.name]
    assert of_ours[3:5] == (1.0, 2.0) and of_ours[-1] == "10 of 10"


@pytest.mark.parametrize("size", [FULL, CORE, QUICK], ids=["full", "core", "quick"])
def test_there_are_prompts_for_every_round(size: Size) -> None:
    """None is asked twice in a round, nor again before all were asked."""
    rounds = [[prompt.id for prompt in size.prompts(turn)] for turn in range(size.rounds)]
    assert all(len(set(ids)) == len(ids) == size.num_prompts(n) for n, ids in enumerate(rounds))
    counts = Counter(itertools.chain.from_iterable(rounds))
    assert max(counts.values()) - min(counts.values()) <= 1
    assert len(counts) == min(counts.total(), len(load_prompts(*KINDS, split="test")))


def test_the_core_has_sixty_different_greedy_chats_a_cell() -> None:
    asked = [prompt.id for turn in range(CORE.rounds) for prompt in CORE.prompts(turn)]
    assert len(set(asked)) == 60
    assert set(asked) <= {prompt.id for prompt in load_prompts(split="test")}
    greedy = next(part for part in CORE.parts if part.temperature == 0)
    sampled = next(part for part in CORE.parts if part.temperature > 0)
    assert CORE.rounds * greedy.chats[OURS] == 60 and greedy.rtts_ms == (0.0, 50.0, 100.0, 250.0)
    assert CORE.rounds * sampled.chats[OURS] == 30 and sampled.rtts_ms == (50.0, 250.0)
    assert all(FULL.rounds * part.chats[OURS] >= 20 for part in FULL.parts if OURS in part.chats)
    assert set(FULL.schemes) == set(SCHEMES), "the full run has all of them"


def test_every_scheme_pays_the_last_mile_and_the_distance() -> None:
    for scheme in SCHEMES:
        assert sum(scheme.rtts_ms(100.0).values()) == 110.0


def planned(size: Size, at_once: bool) -> list[Batch]:
    """A round; with `at_once` the first chat of everything came in one piece."""
    return [
        Batch(
            scheme,
            Cell(rtt_ms, part.sessions, part.temperature),
            turn=0,
            first=first,
            samples=(sample(50.0, STEP_MS, 1 if at_once and not first else 9),) * num_together,
        )
        for part in size.parts
        for rtt_ms, (scheme, count) in itertools.product(part.rtts_ms, part.chats.items())
        for num_together in [count if part.sessions > 1 else 1]
        for first in range(0, count, num_together)
    ]


@pytest.mark.parametrize("size", [FULL, CORE, QUICK], ids=["full", "core", "quick"])
@pytest.mark.parametrize("at_once", [False, True])
def test_whatever_is_planned_can_be_reported(size: Size, at_once: bool, tmp_path: Path) -> None:
    """Also of replies whose pace nobody knows, and where nothing says what it cost."""
    made = planned(size, at_once)
    results, measured = Results(made), Measured(num_rounds=1)
    exact = {scheme.name: "all" for scheme in SCHEMES}
    run = Run("wan", quick=False, command="python -m bench.wan")
    add_tables(run, results, measured, exact)
    keep_samples(run, results)
    keep_settings(run, size, measured)
    run.finish(tmp_path)
    page = regenerated("<!-- bench:wan -->\n<!-- /bench:wan -->", tmp_path)
    assert all(table.title in page for table in run.tables)
    record = json.loads((tmp_path / "wan.json").read_text(encoding="utf-8"))
    kept = record["samples"]["(f) Outrider, RTT 50 ms, 1 at once, greedy: first word that stays"]
    assert kept["n"] == len(results.samples(OURS, Selection(50.0, 1, 0.0)))
    assert record["settings"][OURS.name]["links_rtt_ms"]["RTT 50"] == {
        "near client": 10.0,
        "near region": 50.0,
    }
    truth = {(t, b.cell.temperature, n): () for b in made for t, n in b.asked}
    asked = sum(len(batch.samples) for batch in made if batch.scheme == OURS)
    assert results.num_exact(OURS, truth) == (0, asked)
