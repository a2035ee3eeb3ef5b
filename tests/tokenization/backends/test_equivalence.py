"""The equivalence test and shadow checks: a backend that differs is not used, or not any more."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Sequence

import pytest
from structlog.types import EventDict

from outrider.errors import ConfigError
from outrider.models.vocabulary import Vocabulary
from outrider.tokenization.backends import equivalence
from outrider.tokenization.backends.base import REFERENCE, Batch, Reference
from outrider.tokenization.backends.equivalence import EquivalenceVerdict
from outrider.tokenization.backends.fallback import MAX_SAMPLE_CHARS, FallbackBackend
from outrider.tokenization.backends.selection import select_backend
from tests.edge.integration.region import small_vocabulary


@pytest.fixture(scope="module")
def reference() -> Reference:
    return Reference(small_vocabulary())


class PanicException(BaseException):
    """As a Rust package raises it."""


class Wrong:
    """Equals the reference but for texts with a Z; panics on texts with a Q."""

    name = "wrong"

    def __init__(self, reference: Reference) -> None:
        self._reference = reference

    def encode(self, text: str) -> array[int]:
        if "Q" in text:
            raise PanicException
        ids = self._reference.encode(text)
        return ids[:-1] if "Z" in text else ids

    def encode_batch(self, texts: Sequence[str]) -> Batch:
        return Batch.of(map(self.encode, texts))


def compare(reference: Reference, *texts: str, deadline: float = 1e9) -> equivalence.Comparison:
    ticks = itertools.count()
    return equivalence.compare(
        Wrong(reference), reference, texts, clock=lambda: next(ticks), deadline=deadline
    )


def test_equal_ids_pass(reference: Reference) -> None:
    assert compare(reference, "a", "b", "") == equivalence.Comparison(3, "")
    assert compare(reference) == equivalence.Comparison(0, "")


def test_a_difference_is_described_without_the_text(reference: Reference) -> None:
    outcome = compare(reference, "a", "secretZ", "b")
    assert outcome.num_texts == 2
    assert "6 ids instead of 7" in outcome.problem and "from id 6 on" in outcome.problem
    assert "secret" not in outcome.problem


def test_a_panic_is_a_difference(reference: Reference) -> None:
    assert compare(reference, "Q").problem == "it raised PanicException"


def test_a_test_that_takes_too_long_is_not_passed(reference: Reference) -> None:
    outcome = compare(reference, "a", "b", "c", deadline=1)
    assert "time ran out" in outcome.problem and not outcome.is_final


def test_verdicts_survive_their_file() -> None:
    verdict = EquivalenceVerdict(
        "x", "1.0", passed=False, reason="it differs", num_texts=3, speedup=2.5
    )
    assert EquivalenceVerdict.from_json(verdict.to_json()) == verdict


def guarded(reference: Reference, sample_every: int) -> FallbackBackend:
    return FallbackBackend(Wrong(reference), reference, reason="test", sample_every=sample_every)


def test_a_shadow_check_turns_a_backend_off_at_the_first_difference(
    reference: Reference, logs: list[EventDict]
) -> None:
    encoder = guarded(reference, 1)
    assert encoder.encode("fine") == reference.encode("fine") and encoder.name == "wrong"
    assert encoder.encode("bad Z") == reference.encode("bad Z")
    assert (encoder.name, encoder.generation, encoder.checks.num_mismatches) == (REFERENCE, 1, 1)
    assert "wrong was turned off" in encoder.reason
    assert [entry["event"] for entry in logs] == ["tokenizer_backend_off"]


def test_a_shadow_check_compares_the_first_text_and_then_a_sample(reference: Reference) -> None:
    encoder = guarded(reference, 4)
    for _ in range(9):
        encoder.encode("fine")
    assert encoder.checks.num_checked == 3


def test_of_a_long_text_a_shadow_check_compares_the_beginning(reference: Reference) -> None:
    encoder = guarded(reference, 1)
    long = "a" * MAX_SAMPLE_CHARS
    encoder.encode(long + "Z")
    assert encoder.is_fast
    assert encoder.encode("Z" + long) == reference.encode("Z" + long)
    assert not encoder.is_fast


def test_texts_of_a_batch_are_sampled_as_single_ones_are(reference: Reference) -> None:
    encoder = guarded(reference, 4)
    encoder.encode("fine")
    assert encoder.encode_batch(["Z", "Z", "Z"]) != reference.encode_batch(["Z", "Z", "Z"])
    encoder.encode_batch(["fine"] * 5)  # the first and the last of them are in the sample
    assert (encoder.checks.num_texts, encoder.checks.num_checked) == (9, 3)
    encoder.encode_batch(["fine"] * 3)
    texts = ["Z", "fine"]
    assert encoder.encode_batch(texts) == reference.encode_batch(texts)
    assert not encoder.is_fast and encoder.checks.num_mismatches == 1
    assert encoder.encode_batch(texts) == reference.encode_batch(texts)


def test_a_panic_in_a_batch_costs_no_text(reference: Reference) -> None:
    encoder = guarded(reference, 1000)
    texts = ["fine", "Q"]
    assert encoder.encode_batch(texts) == reference.encode_batch(texts)
    assert not encoder.is_fast


def test_a_panic_in_production_costs_the_backend_and_not_the_text(reference: Reference) -> None:
    encoder = guarded(reference, 1000)
    assert encoder.encode("Q") == reference.encode("Q")
    assert not encoder.is_fast and encoder.checks.num_failures == 1


def small() -> Vocabulary:
    return small_vocabulary()


def test_what_fails_the_test_is_not_used_and_the_log_says_so(logs: list[EventDict]) -> None:
    def judge(package: str) -> EquivalenceVerdict:
        return EquivalenceVerdict(package, "1", passed=False, reason="3 ids instead of 4")

    chosen = select_backend(small(), test=judge)
    assert chosen.name == REFERENCE and "3 ids instead of 4" in chosen.reason
    assert {entry["event"] for entry in logs} == {"tokenizer_backend_not_used"}


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(ConfigError, match="use one of auto"):
        select_backend(small(), "tokie")
