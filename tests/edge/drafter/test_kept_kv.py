"""The draft model's KV of a chat's last turn: found by the next one, within its group alone."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

from outrider.engines.fake import FakeOptions
from outrider.sampling.params import SamplingParams
from services.edge.drafter.kept_kv import KeptKv
from services.edge.drafter.kv import KvSequence
from services.edge.drafter.settings import DrafterLimits
from services.edge.drafter.worker import pin_prefixes
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


def turn(
    bench: Bench,
    number: int,
    prompt: tuple[int, ...],
    group: bytes = b"a",
    prefixes: tuple[int, ...] = (),
) -> list[int]:
    """A whole reply of eight tokens, drafted and closed."""
    bench.open(number, prompt, GREEDY, group=group, prefixes=prefixes)
    bench.settle()
    reply = reply_of(ROOMY, prompt, replace(GREEDY, max_tokens=8))
    bench.commit(number, reply)
    bench.close(number)
    return reply


def rows_of(
    bench: Bench, prompt: tuple[int, ...], group: bytes = b"a", prefixes: tuple[int, ...] = ()
) -> int:
    """Rows until the first draft behind this prompt."""
    before = bench.drafter.counters.num_rows
    bench.open(99, prompt, GREEDY, group=group, prefixes=prefixes)
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
    kept = KeptKv(0, 4)
    kv = KvSequence(1, [0], length=3)
    assert kept.put(b"a", [1, 2, 3], kv) == [kv] and len(kept) == 0


def test_static_prefixes_are_there_for_whoever_may_use_them() -> None:
    bench = bench_of()
    other = PROMPT[::-1]
    assert bench.pin(other[:30]) and bench.pin(PROMPT[:50])
    num_pinned = 256 - bench.drafter.num_free_blocks
    assert num_pinned == 8 + 13
    prompt = (*PROMPT[:50], *NEXT)
    for group in (b"a", b"b", b""):
        assert rows_of(bench, prompt, group + b"1" if group else group) == len(prompt)
        assert rows_of(bench, prompt, group, prefixes=(0, 1)) == len(NEXT)
    # A prompt that is no more than the prefix, and one that leaves it early.
    assert rows_of(bench, PROMPT[:50], b"c", prefixes=(1,)) == 1
    assert rows_of(bench, (*PROMPT[:21], *NEXT), b"d", prefixes=(1, 7)) == len(NEXT)
    # Later turns go on from their own, which shares the prefix's blocks.
    reply = turn(bench, 5, prompt, b"e", prefixes=(1,))
    assert rows_of(bench, (*prompt, *reply, 3), b"e", prefixes=(1,)) == 1
    while bench.drafter.num_kept:
        bench.drafter._pool.free([bench.drafter._kept.pop()])
    assert 256 - bench.drafter.num_free_blocks == num_pinned


def test_static_prefixes_have_half_of_the_pool() -> None:
    bench = bench_of(replace(OPTIONS, num_blocks=32))
    assert bench.pin(PROMPT[:40])
    for too_much in (PROMPT[:40], ()):
        assert not bench.pin(too_much)
    assert bench.pin(PROMPT[:10])
    assert rows_of(bench, (*PROMPT[:12], 1), prefixes=(1, 2, 3)) == 3, "numbered as they came"


def test_a_drafter_computes_what_its_file_says_before_it_is_ready(tmp_path: Path) -> None:
    bench = bench_of()
    file = tmp_path / "prefixes"
    file.write_text(json.dumps([PROMPT[:50], PROMPT * 10]))
    pin_prefixes(bench.drafter, bench.engine, str(file))
    assert bench.drafter.counters.num_rows == 50, "the second has no room"
    assert rows_of(bench, (*PROMPT[:50], *NEXT), prefixes=(0, 1)) == len(NEXT)
    pin_prefixes(bench.drafter, bench.engine, "")
