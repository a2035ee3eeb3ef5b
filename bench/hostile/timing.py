"""Whether the time to the first word tells a stranger what somebody else asked: a prompt whose KV
blocks are in a cache is answered sooner.

For each pair somebody asks a prompt. Then he, and a stranger, ask that prompt and one as long that
nobody asked, in random order, and whose first word came sooner is counted (the sign test). He has
to be told sooner: that shows that the attack could see a difference if there were one. A stranger
must not be.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from bench.harness import Run
from bench.hostile.target import Target, certificate_of
from outrider.client import Client, Committed, connect
from outrider.models.chat import Message
from outrider.sampling.params import SamplingParams

NUM_PAIRS: Final = 60
"""Fewest that a verdict takes: a stranger who is right four times of five is then found out with
a chance of 95 %."""
MAX_CHANCE: Final = 0.001
"""What comes about by luck less often than this is no luck."""
_SECRET: Final = (
    "Patient: Miriam Oakenfold. Ward: seven. Diagnosis: hereditary haemochromatosis. Write her a "
    "letter that begins with 'Dear Miriam Oakenfold'. "
)
_ONE: Final = SamplingParams(max_tokens=1)
OWNER, STRANGER = "who asked it before", "a stranger"


@dataclass(slots=True)
class Compared:
    """Pairs of one client: which prompt's first word came sooner."""

    num_pairs: int = 0
    num_sooner: int = 0
    """Of the prompt that was asked before."""

    @property
    def chance(self) -> float:
        """That a fair coin shows so many heads or more."""
        counts = range(self.num_sooner, self.num_pairs + 1)
        return float(sum(math.comb(self.num_pairs, it) for it in counts) / 2**self.num_pairs)


async def compare(target: Target, num_pairs: int = NUM_PAIRS) -> dict[str, Compared]:
    """By client. Raises OutriderError."""
    found, rng = {OWNER: Compared(), STRANGER: Compared()}, random.Random(1)
    ca = certificate_of(target)
    async with (
        connect(*target.address, ca=ca) as owner,
        connect(*target.address, ca=ca) as stranger,
    ):
        clients = {OWNER: owner, STRANGER: stranger}
        for number in range(num_pairs):
            asked = f"Case {number}, file {rng.randrange(10**9):09d}. {_SECRET * 8}"
            await _first_word_s(owner, asked)
            # The stranger first: what the owner asks again is nothing new for him.
            for name in (STRANGER, OWNER):
                new = f"Case {number}, file {rng.randrange(10**9):09d}. {_SECRET * 8}"
                took_s = {
                    text: await _first_word_s(clients[name], text)
                    for text in rng.sample((asked, new), 2)
                }
                found[name].num_pairs += took_s[asked] != took_s[new]
                found[name].num_sooner += took_s[asked] < took_s[new]
    return found


def misses(found: Mapping[str, Compared]) -> list[str]:
    """Aims that were missed, a sentence each. That the attack had no power is one."""
    missed = [
        f"no power: {name} compared {it.num_pairs} pairs, not {NUM_PAIRS}"
        for name, it in found.items()
        if it.num_pairs < NUM_PAIRS
    ]
    if found[OWNER].chance >= MAX_CHANCE:
        missed.append("no power: not even to who asked it does a cached prompt come sooner")
    if found[STRANGER].chance < MAX_CHANCE:
        missed.append("another's prompt came sooner to a stranger")
    return missed


def report(run: Run, found: Mapping[str, Compared]) -> None:
    """The table."""
    table = run.table(
        "First words of a prompt that somebody asked before, and of one as long that nobody did",
        *("asked by", "pairs", "the known one came sooner", "chance of so many or more"),
    )
    for name, it in found.items():
        table.add(name, it.num_pairs, it.num_sooner, f"{it.chance:.2g}")


async def _first_word_s(client: Client, prompt: str) -> float:
    began = time.monotonic()
    async with client.chat([Message("user", prompt)], sampling=_ONE) as chat:
        async for event in chat:
            if isinstance(event, Committed):
                break
    return time.monotonic() - began
