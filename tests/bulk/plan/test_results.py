"""Lengths of documents, some of them in parts over several shards."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from outrider.bulk.plan.results import ShardRows, document_lengths, percentiles


@given(st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=4), max_size=9), st.data())
def test_parts_of_a_document_are_added_up_across_shards(
    documents: list[list[int]], data: st.DataObject
) -> None:
    rows = [(part, n) for document in documents for part, n in enumerate(document)]
    at = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=3)))
    bounds = [0, *at, len(rows)]
    shards = [
        ShardRows(
            np.array([p for p, _ in rows[a:b]], np.int64),
            np.array([n for _, n in rows[a:b]], np.int64),
        )
        for a, b in pairwise(bounds)
    ]
    assert document_lengths(shards).tolist() == [sum(document) for document in documents]


def test_percentiles_are_lengths_that_occur() -> None:
    assert percentiles(np.arange(1, 201)) == {"p50": 100, "p90": 180, "p99": 198, "max": 200}
    assert percentiles(np.array([7])) == {"p50": 7, "p90": 7, "p99": 7, "max": 7}
    assert percentiles(document_lengths([])) == {}
