"""Sessions of other trust groups, which try to find out what was said to a replica."""

from __future__ import annotations

import pytest

from outrider.sampling.params import SamplingParams
from tests.inference.harness import Peer, running
from tests.inference.letters import VOCABULARY_SIZE

SECRET = [17, 4, 42, 9, 33, 5]
"""Name, diagnosis and ward."""
KNOWN = [60, 61, 62, 60]
"""The template before them."""
PROMPT = [*KNOWN, *SECRET, *[3] * 30]
ONE = SamplingParams(max_tokens=1, ignore_eos=True)


async def read_out(peer: Peer, salt: bytes, first: int) -> tuple[list[int], list[int]]:
    """What can be read of another's prompt from `cached_tokens`, one question per guess, and all
    counts that were seen. Sessions are numbered from `first` on."""
    found, counts, number = list(KNOWN), list[int](), first
    for _ in SECRET:
        cached = dict[int, int]()
        for guess in range(3, VOCABULARY_SIZE):
            await peer.open(number, [*found, guess, 3], ONE, cache_salt=salt)
            reply = await peer.finish(number)
            assert reply.opened is not None and reply.done is not None
            assert reply.done.usage.cached_tokens <= reply.opened.cached_tokens
            cached[guess] = reply.opened.cached_tokens
            number += 1
        counts += cached.values()
        best = max(cached, key=lambda guess: cached[guess])
        found.append(best if cached[best] > len(found) else 3)
    return found[len(KNOWN) :], counts


@pytest.mark.parametrize(
    ("victim", "attacker"), [(b"a", b"b"), (b"", b""), (b"a", b""), (b"", b"b")]
)
async def test_cached_tokens_tell_a_stranger_nothing(victim: bytes, attacker: bytes) -> None:
    async with running() as it:
        peer = it.peer()
        await peer.open(1, PROMPT, ONE, cache_salt=victim)
        await peer.finish(1)
        found, counts = await read_out(peer, attacker, 2)
    assert found != SECRET
    assert not any(counts), "as where nobody has asked"


async def test_cached_tokens_tell_ones_own_group() -> None:
    async with running() as it:
        peer = it.peer()
        await peer.open(1, PROMPT, ONE, cache_salt=b"a")
        await peer.finish(1)
        assert (await read_out(peer, b"a", 2))[0] == SECRET, "the attack works where it may"
