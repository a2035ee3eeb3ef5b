"""What counts as a violation, and what is told of it."""

from __future__ import annotations

from bench.chaos.ledger import MAX_KEPT, Ledger, Reply

EXPECTED = Reply("one two", (1, 2))


def test_an_exact_reply_is_no_violation() -> None:
    ledger = Ledger()
    ledger.ended("chat", "a prompt", EXPECTED, Reply("one two", (1, 2)), 5.0, 7.5)
    counts = ledger.counts("chat")
    assert (counts.exact, counts.differ, counts.longest_s) == (1, 0, 2.5)
    assert ledger.num_violations == 0


def test_a_reply_that_differs_is_told_with_the_faults_meanwhile() -> None:
    ledger = Ledger()
    ledger.healed(ledger.struck("an old fault", 1.0), 4.0)
    ledger.healed(ledger.struck("a fault at its beginning", 4.0), 5.5)
    ledger.struck("the last fault", 6.0)
    ledger.ended("chat", "a prompt", EXPECTED, Reply("one two two", (1, 2, 2)), 5.0, 7.0)
    counts = ledger.counts("chat")
    assert (counts.exact, counts.differ, counts.lost, counts.doubled) == (0, 1, 0, 1)
    (told,) = ledger.violations
    for part in ("a prompt", "'one two'", "'one two two'", "[1, 2, 2]", "a fault at its beginning"):
        assert part in told
    assert "the last fault (still there)" in told
    assert "an old fault" not in told


def test_the_slowest_request_is_told_with_its_faults() -> None:
    ledger = Ledger()
    ledger.healed(ledger.struck("a fault", 1.0), 4.0)
    ledger.ended("chat", "slow", EXPECTED, EXPECTED, 0.0, 9.0)
    ledger.ended("chat", "fast", EXPECTED, EXPECTED, 8.0, 9.0)
    counts = ledger.counts("chat")
    assert counts.longest_s == 9.0
    assert "slow" in counts.slowest and "a fault" in counts.slowest


def test_what_is_missing_is_counted_in_characters_where_no_ids_are_told() -> None:
    ledger = Ledger()
    ledger.ended("stream", "a prompt", Reply("one two"), Reply("one"), 0.0, 1.0)
    assert ledger.counts("stream").lost == len(" two")


def test_a_request_without_a_reply_says_why() -> None:
    ledger = Ledger()
    ledger.failed("chat", "a prompt", "no reply within 120 s", 0.0)
    assert ledger.counts("chat").failed == 1
    assert "no reply within 120 s" in ledger.violations[0]
    assert "none" in ledger.violations[0]


def test_the_words_of_so_many_violations_are_kept_and_all_are_counted() -> None:
    ledger = Ledger()
    for number in range(2 * MAX_KEPT):
        ledger.healed(ledger.struck(f"fault {number}", number), number + 1)
        ledger.violation("wrong", 0.0)
    assert len(ledger.violations) == MAX_KEPT
    assert ledger.num_violations == 2 * MAX_KEPT
    assert len(ledger.faults_since(0.0)) == MAX_KEPT
