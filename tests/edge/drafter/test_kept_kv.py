"""The draft model's KV of a chat's last turn: found by the next one, within its group alone."""

from __future__ import annotations

import random
from dataclasses import replace

from outrider.engines.fake import FakeOptions
from outrider.sampling.params import SamplingParams
from services.edge.drafter.kept_kv import KeptKv
from services.edge.drafter.kv import KvSequence
from services.edge.drafter.settings import DrafterLimits
from tests.edge.drafter.driving import OPTIONS, Bench, believing, reply_of

GREEDY = SamplingParams(max_tokens=64)
ROOMY = replace(OPTIONS, num_blocks=256)
PROMPT = tuple(random.Random(1).randrange(32) for _ in range(60))
NEXT = (4, 4, 8, 1)


def bench_of(options: FakeOptions = ROOMY, **limits: int) -> Bench:
    return Bench(
        options,
        limits=DrafterLimits(min_branch=1.0, min_cheap_branch=1.0, **limits),
        calibration=believing(1.0, 1.0),
    )


def turn(bench: Bench, number: int, prompt: tuple[int, ...], group: bytes = b"a") -> list[int]:
    """A whole reply of eight tokens, drafted and closed."""
    bench.open(number, prompt, GREEDY, group=group)
    bench.settle()
    reply = reply_of(ROOMY, prompt, replace(GREEDY, max_tokens=8))
    bench.commit(number, reply)
    bench.close(number)
    return reply


def rows_of(bench: Bench, prompt: tuple[int, ...], group: bytes = b"a") -> int:
    """Rows until the first draft behind this prompt."""
    before = bench.drafter.counters.num_rows
    bench.open(99, prompt, GREEDY, group=group)
    while 99 not in bench.updates:
        assert bench.turn() is not None
    rows = bench.drafter.counters.num_rows - before
    bench.close(99)
    del bench.updates[99]
    return rows


def test_the_next_turn_computes_what_is_new() -> None:
    bench = bench_of()
    reply = turn(bench, 1, PROMPT)
    assert rows_of(bench, (*PROMPT, *reply, *NEXT)) == len(NEXT)
    assert bench.drafter.counters.num_reused == len(PROMPT) + 8
    # Its own KV is kept in its place; the same prompt once more takes a row.
    assert bench.drafter.num_kept == 1
    assert rows_of(bench, (*PROMPT, *reply, *NEXT)) == 1


def test_another_group_computes_all_of_it() -> None:
    bench = bench_of()
    turn(bench, 1, PROMPT)
    for group in (b"b", b""):
        assert rows_of(bench, PROMPT, group) == len(PROMPT)
    turn(bench, 2, PROMPT, b"")
    assert rows_of(bench, PROMPT, b"c") == len(PROMPT)


def test_a_chat_that_begins_alike_leaves_a_longer_one_its_kv() -> None:
    bench = bench_of()
    turn(bench, 1, PROMPT)
    assert rows_of(bench, (*PROMPT[:20], *NEXT)) == 20 + len(NEXT)
    assert rows_of(bench, (*PROMPT[:50], *NEXT)) == len(NEXT), "and takes it where most is alike"


def test_kept_kv_gives_way_to_chats_that_are_there() -> None:
    bench = bench_of(replace(OPTIONS, num_blocks=56))
    for number in range(1, 9):
        turn(bench, number, (*PROMPT[number:], number), b"%d" % number)
        assert bench.drafter.counters.num_refused == 0
    assert bench.drafter.num_kept <= 3
    for number in (20, 21):
        bench.open(number, PROMPT[::-1], GREEDY)
        bench.settle()
    assert bench.drafter.num_modelled == 2 and bench.drafter.num_kept == 0
    bench.close(20)
    bench.close(21)
    assert bench.drafter.num_free_blocks == 56


def test_so_many_are_kept() -> None:
    bench = bench_of(max_kept=2)
    for number in range(1, 6):
        turn(bench, number, PROMPT, b"%d" % number)
    assert bench.drafter.num_kept == 2
    assert rows_of(bench, PROMPT, b"1") == len(PROMPT)
    kept = KeptKv(0)
    kv = KvSequence(1, [0], length=3)
    assert kept.put(b"a", [1, 2, 3], kv) == [kv] and len(kept) == 0
