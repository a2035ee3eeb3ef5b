"""What several processes count together: one model of all, whatever they do in whichever order."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.errors import OverloadedError
from services.edge.limits.quotas import Count, QuotaLimits, Quotas, Rate, RateLimit
from services.edge.processes.quotas import SharedQuotas
from services.edge.processes.usage import SharedUsage, make_memory, named

SECRET = bytes(32)
LIMITS = QuotaLimits(
    counts={Count.CHATS: 3, Count.CONNECTIONS: 2},
    rates={Rate.HANDSHAKES: RateLimit(1.0, 4.0)},
)


@pytest.fixture
def memory() -> Iterator[int]:
    descriptor = make_memory(2, 32)
    yield descriptor
    os.close(descriptor)


OPERATIONS = st.lists(
    st.tuples(
        st.integers(0, 1),  # process
        st.sampled_from(["hold", "release", "spend", "die"]),
        st.sampled_from(["10.0.0.1/32", "10.0.0.2/32"]),
        st.sampled_from([Count.CHATS, Count.CONNECTIONS]),
        st.floats(0.0, 2.0),
    ),
    max_size=40,
)


@settings(max_examples=50)
@given(OPERATIONS)
def test_two_processes_hold_as_much_as_one(
    operations: list[tuple[int, str, str, Count, float]],
) -> None:
    descriptor = make_memory(2, 32)
    usages = [SharedUsage(descriptor, process, 2, 32) for process in range(2)]
    shared = [SharedQuotas[str](LIMITS, usage, SECRET, "address") for usage in usages]
    alone: Quotas[str] = Quotas(LIMITS)
    held: Counter[tuple[int, str, Count]] = Counter()
    now = 100.0
    for process, what, key, count, amount in operations:
        now += amount / 2
        if what == "die":
            usages[1 - process].clear(process)
            for (owner, of, kind), number in list(held.items()):
                if owner == process:
                    for _ in range(number):
                        alone.release(of, kind)
                    del held[owner, of, kind]
        elif what == "release":
            if held[process, key, count]:
                held[process, key, count] -= 1
                shared[process].release(key, count)
                alone.release(key, count)
        elif what == "spend":
            assert _refused(shared[process].spend, key, Rate.HANDSHAKES, amount, now) == (
                _refused(alone.spend, key, Rate.HANDSHAKES, amount, now)
            )
        else:
            refused = _refused(shared[process].hold, key, count, now)
            assert refused == _refused(alone.hold, key, count, now)
            held[process, key, count] += not refused
        assert shared[1 - process].held(key, count) == alone.held(key, count)
        level = shared[1 - process].level(key, Rate.HANDSHAKES, now)
        assert level == pytest.approx(alone.level(key, Rate.HANDSHAKES, now))
    os.close(descriptor)


def _refused(verb: Callable[..., None], *arguments: object) -> bool:
    try:
        verb(*arguments)
    except OverloadedError:
        return True
    return False


def test_the_memory_is_bounded_and_forgets_who_holds_nothing(memory: int) -> None:
    usage = SharedUsage(memory, 0, 2, 32)
    keys = [named(SECRET, "address", str(number)) for number in range(200)]
    for number, key in enumerate(keys):
        assert usage.hold(key, 0, None, float(number))
        usage.release(key, 0)
    refused = 0
    for key in keys:
        try:
            usage.hold(key, 0, None, 1000.0)
        except OverloadedError:
            refused += 1
    assert refused == len(keys) - 32
    assert sum(usage.held(key, 0) for key in keys) == 32


def test_kinds_of_keys_do_not_meet() -> None:
    assert named(SECRET, "address", "a") != named(SECRET, "client", "a")
    assert named(SECRET, "address", "a") != named(b"other", "address", "a")


_HOLDER = """
import fcntl, sys, time
fcntl.lockf(int(sys.argv[1]), fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(60)
"""


def test_a_process_that_stopped_or_died_with_the_lock_holds_nobody_up(memory: int) -> None:
    usage = SharedUsage(memory, 0, 2, 32)
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(memory)], stdout=subprocess.PIPE, pass_fds=[memory]
    )
    assert holder.stdout is not None
    assert holder.stdout.readline()
    holder.send_signal(signal.SIGSTOP)
    key = named(SECRET, "address", "a")
    assert usage.hold(key, 0, 1, 0.0)
    assert not usage.hold(key, 0, 1, 0.0)
    holder.kill()
    holder.wait()
    holder.stdout.close()
    assert usage._take_lock()
