"""Slices laid out as one call."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from outrider.engines.base import SequenceSlice, SizingRule
from outrider.engines.openvino.batch import CallLayout, lay_out


def _round(count: int, past: int, rows: int, blocks: int = 2) -> SequenceSlice:
    tokens = np.arange(100, 100 + count, dtype=np.int32)
    return SequenceSlice(1, tokens, past, np.arange(blocks, dtype=np.int32), rows)


@st.composite
def slices(draw: st.DrawFn) -> SequenceSlice:
    count = draw(st.integers(1, 6))
    past, blocks = draw(st.integers(0, 50)), draw(st.integers(1, 4))
    return _round(count, past, draw(st.integers(0, count)), blocks)


def test_a_prefill_and_a_decode_row_side_by_side() -> None:
    inputs = lay_out([_round(3, 0, 0), _round(1, 40, 1, blocks=3)], duplicates=False)
    assert {name: array.tolist() for name, array in inputs.items()} == {
        "input_ids": [100, 101, 102, 100],
        "position_ids": [0, 1, 2, 40],
        "past_lens": [0, 40],
        "subsequence_begins": [0, 3, 4],
        "block_indices": [0, 1, 0, 1, 2],
        "block_indices_begins": [0, 2, 5],
        "max_context_len": 41,
        "logit_rows": [3],
    }


@given(st.lists(slices(), min_size=1, max_size=8))
def test_every_sequence_enters_attention_with_two_rows_and_leaves_with_its_own(
    parts: list[SequenceSlice],
) -> None:
    plain = lay_out(parts, duplicates=False)
    inputs = lay_out(parts, duplicates=True)
    entering, kept = inputs["attention_rows"], inputs["kept_rows"]
    begins = inputs["subsequence_begins"]
    assert entering[kept].tolist() == list(range(sum(len(part.tokens) for part in parts)))
    assert begins[-1] == len(entering)
    assert [max(2, len(part.tokens)) for part in parts] == np.diff(begins).tolist()
    for index, part in enumerate(parts):
        own = entering[begins[index] : begins[index + 1]]
        first = plain["subsequence_begins"][index]
        assert set(own) == set(range(first, first + len(part.tokens)))
    assert inputs["max_context_len"] == max(p.past + max(2, len(p.tokens)) for p in parts)


@given(st.lists(slices(), min_size=1, max_size=8))
def test_asked_rows_are_each_slices_last(parts: list[SequenceSlice]) -> None:
    inputs = lay_out(parts, duplicates=False)
    rows = inputs["logit_rows"]
    expected = np.concatenate(
        [
            part.past + np.arange(len(part.tokens))[len(part.tokens) - part.num_rows :]
            for part in parts
        ]
    )
    assert inputs["position_ids"][rows].tolist() == expected.tolist()


@given(st.lists(slices(), min_size=1, max_size=8), st.booleans(), st.sampled_from([1, 4]))
def test_padding_follows_what_was_asked_for(
    parts: list[SequenceSlice], exact: bool, min_logits: int
) -> None:
    spare = np.arange(900, 904, dtype=np.int32)
    layout = CallLayout(SizingRule((1, 2, 4, 8, 16), 16), min_logits, exact, spare)
    inputs, alone = layout.inputs(parts), lay_out(parts, duplicates=exact)
    num_rows = layout.sizing.padded(sum(len(part.tokens) for part in parts))
    assert len(inputs["input_ids"]) == len(inputs["position_ids"]) == num_rows
    assert len(inputs["logit_rows"]) == layout.num_logits(len(alone["logit_rows"]))
    for name, array in alone.items():
        if name != "max_context_len":
            assert inputs[name][: len(array)].tolist() == array.tolist()
    begins, entering = (
        inputs["subsequence_begins"],
        inputs.get("attention_rows", inputs["input_ids"]),
    )
    assert begins[-1] == len(entering)
    assert len(inputs["past_lens"]) == len(begins) - 1 == len(inputs["block_indices_begins"]) - 1
    if len(begins) > len(alone["subsequence_begins"]):
        assert inputs["block_indices"][-4:].tolist() == spare.tolist()
        assert inputs["past_lens"][-1] == 0
    if exact:
        assert len(inputs["kept_rows"]) == num_rows


@given(st.lists(slices(), min_size=1, max_size=8), st.integers(1, 9))
def test_slices_are_cut_into_calls_of_no_more_rows_than_agree(
    parts: list[SequenceSlice], max_rows: int
) -> None:
    parts = [part._replace(sequence=number) for number, part in enumerate(parts)]
    layout = CallLayout(SizingRule(), 1, True, np.arange(4, dtype=np.int32), max_rows)
    calls = layout.calls(parts)
    sizes = [sum(len(part.tokens) for part in call) for call in calls]
    assert all(size == max_rows for size in sizes[:-1]) and 0 < sizes[-1] <= max_rows
    for whole in parts:
        pieces = [it for call in calls for it in call if it.sequence == whole.sequence]
        assert np.concatenate([it.tokens for it in pieces]).tolist() == whole.tokens.tolist()
        ends = [it.past + len(it.tokens) for it in pieces]
        assert [it.past for it in pieces] == [whole.past, *ends[:-1]]
        asked = [end - n for it, end in zip(pieces, ends, strict=True) for n in range(it.num_rows)]
        assert sorted(asked) == list(range(ends[-1] - whole.num_rows + 1, ends[-1] + 1))


def test_any_number_of_rows_is_one_call_where_all_agree() -> None:
    layout = CallLayout(SizingRule(), 1, True, np.arange(4, dtype=np.int32))
    parts = [_round(6, 0, 1)] * 99
    assert layout.calls(parts) == [parts]
