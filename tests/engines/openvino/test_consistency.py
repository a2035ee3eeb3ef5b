"""Which calls agree, found by trying: on made-up kernels that change with the number of rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.engines.base import Logits, SizingRule, ladder
from outrider.engines.fingerprint import fingerprint_of, probe_ids
from outrider.engines.openvino.consistency import (
    LONG_PROBE_ROWS,
    PROBE_ROWS,
    Compute,
    compute_reference,
    compute_samples,
    least_logits,
    least_rows,
    most_rows,
)
from outrider.errors import EngineError

SIZES = (*ladder(32), 48)
VOCABULARY_SIZE = 64


def kernels(changes_at: int = 0, head_changes_at: int = 0, long_changes_at: int = 9999) -> Compute:
    """An engine whose products have another kernel for calls of fewer than `changes_at` rows, for
    fewer than `head_changes_at` rows of the head, and for `long_changes_at` rows or more."""

    def compute(past: int, num_rows: int, num_logits: int) -> Logits:
        positions = np.arange(past, past + num_rows)[num_rows - num_logits :]
        rows = np.sin(positions[:, None] + np.arange(VOCABULARY_SIZE), dtype=np.float64)
        kernel = (num_rows < changes_at) + 2 * (num_logits < head_changes_at)
        kernel += 4 * (num_rows >= long_changes_at)
        return np.asarray(rows * (1 + kernel * 2.0**-20), np.float32)

    return compute


@pytest.mark.parametrize(
    ("changes_at", "expected"), [(0, 1), (2, 2), (5, 6), (7, 8), (16, 16), (33, 48)]
)
def test_calls_of_too_few_rows_are_found(changes_at: int, expected: int) -> None:
    compute = kernels(changes_at)
    assert least_rows(compute, compute_reference(compute, 999), SIZES) == expected


def test_one_size_that_differs_rules_out_all_below_it() -> None:
    usual = kernels()

    def compute(past: int, num_rows: int, num_logits: int) -> Logits:
        return usual(past, num_rows, num_logits) + np.float32(num_rows == 12)

    assert least_rows(compute, compute_reference(compute, 999), SIZES) == 16


@pytest.mark.parametrize(("changes_at", "expected"), [(0, 1), (2, 2), (5, 8), (10, 16)])
def test_too_few_rows_of_the_head_are_found(changes_at: int, expected: int) -> None:
    assert least_logits(kernels(head_changes_at=changes_at), 999) == expected


@pytest.mark.parametrize("max_tokens", [1, 3, 20])
def test_a_pool_without_room_is_tried_as_far_as_it_goes(max_tokens: int) -> None:
    compute = kernels()
    reference = compute_reference(compute, max_tokens)
    assert len(reference) == min(max_tokens, PROBE_ROWS)
    assert least_rows(compute, reference, SIZES) == 1
    assert least_logits(compute, max_tokens) == 1
    assert most_rows(compute, reference, max_tokens) == PROBE_ROWS


@pytest.mark.parametrize(
    ("changes_at", "expected"), [(49, 48), (64, 48), (65, 64), (128, 64), (200, 128), (257, 0)]
)
def test_the_most_rows_that_agree_are_found(changes_at: int, expected: int) -> None:
    compute = kernels(long_changes_at=changes_at)
    reference = compute_reference(compute, LONG_PROBE_ROWS)
    assert most_rows(compute, reference, LONG_PROBE_ROWS) == expected


@pytest.mark.parametrize(("max_tokens", "expected"), [(63, 48), (64, 64), (255, 128)])
def test_sizes_that_there_was_no_room_to_try_are_not_used(max_tokens: int, expected: int) -> None:
    compute = kernels()
    assert most_rows(compute, compute_reference(compute, max_tokens), max_tokens) == expected


@pytest.mark.parametrize("long_changes_at", [64, 9999])
def test_text_that_would_depend_on_how_prompts_are_cut_is_refused(long_changes_at: int) -> None:
    usual = kernels(long_changes_at=long_changes_at)

    def compute(past: int, num_rows: int, num_logits: int) -> Logits:
        return usual(past, num_rows, num_logits) + np.float32(past > 0) * num_rows

    with pytest.raises(EngineError, match="set precision to another"):
        most_rows(compute, compute_reference(usual, LONG_PROBE_ROWS), LONG_PROBE_ROWS)


def test_engines_that_need_not_agree_are_told_apart_by_calls_of_few_rows() -> None:
    one, other = kernels(), kernels(changes_at=3)
    alike = [fingerprint_of(compute_reference(compute, 99)) for compute in (one, other)]
    apart = [fingerprint_of(compute_samples(compute, 99)) for compute in (one, other)]
    assert len(set(alike)) == 1 and len(set(apart)) == 2


def test_the_fingerprint_tells_the_last_bit() -> None:
    reference = compute_reference(kernels(), 999)
    changed = reference.copy()
    changed[-1, -1] = np.nextafter(changed[-1, -1], np.float32(9))
    assert fingerprint_of(reference) == fingerprint_of(reference.copy())
    assert fingerprint_of(reference) != fingerprint_of(changed)


@given(st.integers(1, 2**20), st.integers(1, 400))
def test_probe_ids_are_in_the_vocabulary(vocabulary_size: int, num_tokens: int) -> None:
    ids = probe_ids(vocabulary_size, num_tokens)
    assert len(ids) == num_tokens
    assert 0 <= ids.min() and ids.max() < vocabulary_size


@given(st.integers(0, 64), st.integers(1, 64), st.integers(1, 200))
def test_calls_are_filled_up_to_the_least_size(most: int, min_rows: int, num_rows: int) -> None:
    rule = SizingRule(ladder(most), 16)
    least = rule.at_least(min_rows)
    assert least.padded(num_rows) >= max(num_rows, min(min_rows, least.padded(1)))
    assert least.padded(1) >= min_rows
    assert rule.at_least(1) == rule
