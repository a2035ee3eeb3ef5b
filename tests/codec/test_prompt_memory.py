"""Prompts that are named instead of sent: names, growth by turns, bounds, and trust groups."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from outrider.codec.prompt_memory import (
    MIN_PREFIX_TOKENS,
    NAME_BYTES,
    PromptMemory,
    as_bytes,
    prompt_name,
    prompt_scope,
    reply_name,
)

VOCABULARY = b"\x07" * 32
OURS, THEIRS = (prompt_scope(salt, VOCABULARY) for salt in (b"ours", b"them"))


def ids_of(seed: int, num_tokens: int) -> bytes:
    rng = Random(seed)
    return as_bytes([rng.randrange(1000) for _ in range(num_tokens)])


def never(packed: bytes) -> bytes:
    raise AssertionError("nothing is to be read")


def test_names_are_of_the_trust_group_and_of_the_vocabulary() -> None:
    ids = ids_of(1, 100)
    scopes = [OURS, THEIRS, prompt_scope(b"ours", b"\x08" * 32)]
    names = {prompt_name(scope, ids) for scope in scopes}
    assert len(names) == len(scopes) and {len(name) for name in names} == {NAME_BYTES}
    assert prompt_scope(b"", VOCABULARY) == b""
    # Where the salt ends and the vocabulary begins makes a difference.
    assert prompt_scope(b"ab", b"c") != prompt_scope(b"a", b"bc")


def test_a_returning_chat_is_found_to_the_token() -> None:
    memory = PromptMemory(1 << 20, is_searched=True)
    first = ids_of(1, 500)
    name = prompt_name(OURS, first)
    memory.remember(OURS, name, first)
    known = memory.longest(OURS, first + ids_of(2, 40))
    assert known == (name, 500)
    changed = first[: 4 * 333] + ids_of(3, 50)
    assert memory.longest(OURS, changed) == (name, 333)
    assert memory.prefix(OURS, name, 333, never) == first[: 4 * 333]
    assert memory.longest(OURS, ids_of(4, 500)) is None


def test_another_trust_group_finds_nothing() -> None:
    memory = PromptMemory(1 << 20, is_searched=True)
    ids = ids_of(1, 500)
    name = prompt_name(OURS, ids)
    memory.remember(OURS, name, ids)
    assert memory.longest(THEIRS, ids) is None
    assert memory.prefix(THEIRS, name, 10, never) is None
    assert memory.prefix(THEIRS, prompt_name(THEIRS, ids), 10, never) is None


def test_nothing_is_kept_without_a_group_and_of_what_is_short() -> None:
    memory = PromptMemory(1 << 20)
    memory.remember(b"", b"n" * 16, ids_of(1, 500))
    memory.remember(OURS, b"n" * 16, ids_of(1, MIN_PREFIX_TOKENS - 1))
    assert len(memory) == memory.num_bytes == 0


def test_a_chat_of_many_turns_takes_the_room_of_its_last() -> None:
    memory = PromptMemory(1 << 20, is_searched=True)
    ids, base, names = ids_of(0, 200), b"", []
    for turn in range(30):
        base, before = prompt_name(OURS, ids), base
        memory.remember(OURS, base, ids, before)
        names.append((base, len(ids) // 4))
        ids += ids_of(turn + 1, 60)
    memory.check_invariants()
    assert len(memory) == 1 and memory.num_bytes < 30_000
    assert memory.prefix(OURS, *names[-9], never) == ids[: 4 * names[-9][1]]
    assert memory.prefix(OURS, *names[0], never) is None, "of very many names the first are dropped"


def test_a_reply_is_read_when_the_chat_goes_on_from_it_and_not_before() -> None:
    memory = PromptMemory(1 << 20)
    prompt, reply = ids_of(1, 100), ids_of(2, 30)
    base = prompt_name(OURS, prompt)
    both = reply_name(OURS, base, 30, 0x1234)
    memory.remember(OURS, base, prompt)
    memory.replied(OURS, base, both, 30, b"packed")
    assert memory.prefix(OURS, both, 90, never) == prompt[: 4 * 90]
    read: list[bytes] = []

    def unpack(packed: bytes) -> bytes:
        read.append(packed)
        return reply

    assert memory.prefix(OURS, both, 131, unpack) is None
    assert memory.prefix(OURS, both, 120, unpack) == prompt + reply[: 4 * 20]
    assert memory.prefix(OURS, both, 130, never) == prompt + reply
    assert read == [b"packed"]
    memory.check_invariants()


def test_a_reply_that_cannot_be_read_is_unknown() -> None:
    memory = PromptMemory(1 << 20)
    prompt = ids_of(1, 100)
    base = prompt_name(OURS, prompt)
    memory.remember(OURS, base, prompt)
    memory.replied(OURS, base, b"r" * 16, 30, b"packed")
    assert memory.prefix(OURS, b"r" * 16, 120, lambda _: b"") is None
    assert memory.prefix(OURS, b"r" * 16, 120, never) is None
    assert memory.prefix(OURS, base, 100, never) == prompt
    memory.check_invariants()


def test_a_group_that_fills_the_memory_forgets_its_own_first() -> None:
    memory = PromptMemory(100_000)
    quiet = ids_of(1, 500)
    memory.remember(THEIRS, prompt_name(THEIRS, quiet), quiet)
    for seed in range(200):
        ids = ids_of(seed, 500)
        memory.remember(OURS, prompt_name(OURS, ids), ids)
        memory.check_invariants()
    assert memory.prefix(THEIRS, prompt_name(THEIRS, quiet), 500, never) == quiet
    too_long = ids_of(5, 50_000)
    memory.remember(OURS, prompt_name(OURS, too_long), too_long)
    memory.check_invariants()


class Ends:
    """A sender and a receiver, with room for a few prompts each, and what goes between them."""

    def __init__(self, sender_bytes: int, receiver_bytes: int) -> None:
        self.sender = PromptMemory(sender_bytes, is_searched=True)
        self.receiver = PromptMemory(receiver_bytes)
        self.num_asked = 0

    def open(self, scope: bytes, ids: bytes) -> bytes:
        """The prompt that the receiver ends up with."""
        name = prompt_name(scope, ids)
        known = self.sender.longest(scope, ids)
        base = known.name if known else b""
        self.sender.remember(scope, name, ids, base)
        got = ids
        if known is not None:
            prefix = self.receiver.prefix(scope, known.name, known.num_tokens, bytes)
            if prefix is None:
                self.num_asked += 1
                self.sender.forget(scope, known.name)
                self.sender.remember(scope, name, ids)
            else:
                got = prefix + ids[4 * known.num_tokens :]
        self.receiver.remember(scope, name, got, base)
        return got

    def replied(self, scope: bytes, prompt: bytes, reply: bytes, checksum: int) -> None:
        base = prompt_name(scope, prompt)
        name = reply_name(scope, base, len(reply) // 4, checksum)
        self.sender.remember(scope, name, prompt + reply, base)
        self.receiver.replied(scope, base, name, len(reply) // 4, reply)


STEPS = st.tuples(
    st.sampled_from([OURS, THEIRS]),
    st.integers(0, 3),  # which chat
    st.sampled_from(["goes on", "goes on", "goes on", "again", "cut", "other reply"]),
    st.integers(0, 150),
)


@given(st.lists(STEPS, max_size=40), st.sampled_from([0, 4_000, 40_000]), st.integers(1, 40_000))
def test_whatever_is_forgotten_every_prompt_arrives_as_it_was(
    steps: list[tuple[bytes, int, str, int]], receiver_bytes: int, sender_bytes: int
) -> None:
    ends = Ends(sender_bytes, receiver_bytes)
    chats = {
        (scope, number): ids_of(number, 70 + 40 * number)
        for scope in (OURS, THEIRS)
        for number in range(4)
    }
    for at, (scope, number, what, num_tokens) in enumerate(steps):
        ids = chats[scope, number]
        if what == "cut":
            ids = ids[: 4 * num_tokens] or ids
        elif what == "other reply":
            ids = ids[: len(ids) // 8 * 4] + ids_of(900 + at, num_tokens)
        assert ends.open(scope, ids) == ids
        reply = ids_of(at, num_tokens)
        if reply and what != "again":
            ends.replied(scope, ids, reply, at)
            ids += reply
        chats[scope, number] = (ids + ids_of(1000 + at, 5))[:8_000]
        ends.sender.check_invariants()
        ends.receiver.check_invariants()


def test_a_chat_between_ends_with_room_is_asked_for_nothing_twice() -> None:
    ends = Ends(1 << 20, 1 << 20)
    ids = ids_of(1, 300)
    for turn in range(10):
        assert ends.open(OURS, ids) == ids
        reply = ids_of(turn + 50, 80)
        ends.replied(OURS, ids, reply, turn)
        known = ends.sender.longest(OURS, ids + reply + ids_of(turn, 20))
        assert known is not None and known.num_tokens == len(ids + reply) // 4
        ids += reply + ids_of(turn, 20)
    assert ends.num_asked == 0 and len(ends.receiver) == 1
