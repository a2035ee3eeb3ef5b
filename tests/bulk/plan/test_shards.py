"""Every byte and every row group of every source is in one slice of one shard."""

from __future__ import annotations

from itertools import groupby, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.bulk.plan.shards import (
    FILE_BYTES,
    GZIP_RATIO,
    BulkSettings,
    FileKind,
    Shard,
    Slice,
    SourceFile,
    kind_of,
    make_shards,
)
from outrider.errors import InvalidRequestError
from tests.bulk.making import source

GROUPS = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 3000)), min_size=1, max_size=6)
SOURCES = st.lists(
    st.one_of(
        st.builds(source, st.sampled_from(["a.txt", "b.jsonl", "c.txt.gz"]), st.integers(0, 9000)),
        st.builds(lambda groups: source("d.parquet", 1, groups=groups), GROUPS),
    ),
    max_size=12,
)


def sized(shard_bytes: int) -> BulkSettings:
    return BulkSettings(shard_bytes=shard_bytes)


def size(one: SourceFile) -> int:
    return len(one.row_groups) if one.kind is FileKind.PARQUET else one.num_bytes


@given(SOURCES, st.integers(1, 5000), st.booleans())
def test_slices_cover_every_source_once_in_order(
    sources: list[SourceFile], shard_bytes: int, cuts_texts: bool
) -> None:
    numbered = [
        SourceFile(f"{n}-{one.path}", one.kind, one.is_gzip, one.num_bytes, n, one.row_groups)
        for n, one in enumerate(sources)
    ]
    shards = make_shards(numbered, sized(shard_bytes), cuts_texts=cuts_texts)
    assert [shard.number for shard in shards] == list(range(len(shards)))
    slices = [one for shard in shards for one in shard.slices]
    by_source = [(s, list(g)) for s, g in groupby(slices, key=lambda one: one.source)]
    assert [s for s, _ in by_source] == numbered
    for one, taken in by_source:
        assert taken[0].begin == 0 and taken[-1].end == size(one)
        assert all(before.end == after.begin for before, after in pairwise(taken))
        if one.kind is not FileKind.PARQUET:
            assert [part.part for part in taken] == list(range(len(taken)))
        if one.is_gzip or (one.kind is FileKind.TEXT and not cuts_texts):
            assert len(taken) == 1


@given(SOURCES, st.integers(1500, 5000))
def test_a_shard_is_above_its_size_only_for_what_cannot_be_cut(
    sources: list[SourceFile], shard_bytes: int
) -> None:
    for shard in make_shards(sources, sized(shard_bytes), cuts_texts=True):
        if shard.num_bytes > shard_bytes + FILE_BYTES:
            (only,) = shard.slices
            assert only.source.is_gzip or only.end - only.begin == 1


def test_a_long_text_is_cut_into_equal_slices() -> None:
    shards = make_shards([source("a.txt", 1000)], sized(300), cuts_texts=True)
    assert [(s.begin, s.end, s.part) for shard in shards for s in shard.slices] == [
        (0, 250, 0),
        (250, 500, 1),
        (500, 750, 2),
        (750, 1000, 3),
    ]


def test_many_small_files_are_not_one_shard() -> None:
    files = [source(f"{n}.txt", 1) for n in range(10)]
    shards = make_shards(files, sized(3 * (FILE_BYTES + 1)), cuts_texts=True)
    assert [len(shard.slices) for shard in shards] == [3, 3, 3, 1]


def test_gzip_counts_for_what_it_holds() -> None:
    files = [source("a.txt.gz", 1000), source("b.txt.gz", 1000)]
    assert len(make_shards(files, sized(1000 * GZIP_RATIO + FILE_BYTES), cuts_texts=True)) == 2


def test_rows_of_row_groups_are_counted() -> None:
    one = source("a.parquet", groups=[(3, 10), (4, 10), (5, 30), (6, 5)])
    shards = make_shards([one], sized(20), cuts_texts=True)
    assert [s for shard in shards for s in shard.slices] == [
        Slice(one, 0, 2, first_record=0),
        Slice(one, 2, 3, first_record=7),
        Slice(one, 3, 4, first_record=12),
    ]


def test_names_of_shards_sort_as_they_do() -> None:
    shards = make_shards([source("a.txt", 1100)], sized(1), cuts_texts=True)
    names = [shard.name(".parquet") for shard in shards]
    assert names == sorted(names) and names[11] == "shard-000011.parquet"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("a.txt", (FileKind.TEXT, False)),
        ("A.TXT.GZ", (FileKind.TEXT, True)),
        ("x.y.jsonl", (FileKind.LINES, False)),
        ("b.jsonl.gz", (FileKind.LINES, True)),
        ("c.parquet", (FileKind.PARQUET, False)),
    ],
)
def test_names_say_what_files_hold(path: str, expected: tuple[FileKind, bool]) -> None:
    assert kind_of(path) == expected


@pytest.mark.parametrize("path", ["a", "a.gz", "a.csv", "a.parquet.gz", "txt"])
def test_other_names_are_refused(path: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"end with \.txt"):
        kind_of(path)


@given(SOURCES, st.integers(1, 5000), st.integers(2, 20))
def test_a_small_job_has_smaller_shards_and_no_more_parts_of_texts(
    sources: list[SourceFile], shard_bytes: int, min_shards: int
) -> None:
    """Not always more of them: row groups are gathered anew, and may fit a smaller shard better."""
    settings = BulkSettings(shard_bytes=shard_bytes, min_shards=min_shards)
    shards = make_shards(sources, settings, cuts_texts=True)
    total = sum(s.num_bytes for s in make_shards(sources, sized(1 << 60), cuts_texts=False))
    share = -(-total // min_shards)
    for shard in shards:
        assert len(shard.slices) == 1 or shard.num_bytes <= min(shard_bytes, share)
    for shard, following in pairwise(shards):
        assert shard.num_bytes + following.num_bytes > min(shard_bytes, share)

    def texts(found: list[Shard]) -> list[Slice]:
        slices = [one for shard in found for one in shard.slices]
        return [one for one in slices if one.source.kind is FileKind.TEXT]

    plain = make_shards(sources, sized(shard_bytes), cuts_texts=True)
    assert texts(shards) == texts(plain)


def test_a_small_job_of_many_files_is_work_for_many() -> None:
    files = [source(f"{n}.txt", 1000) for n in range(100)]
    settings = BulkSettings(shard_bytes=1 << 24, min_shards=16)
    shards = make_shards(files, settings, cuts_texts=True)
    assert 16 <= len(shards) <= 17
    large = BulkSettings(shard_bytes=4000, min_shards=16)
    assert make_shards(files, large, cuts_texts=True) == make_shards(
        files, sized(4000), cuts_texts=True
    )
