"""What a draft's file says of itself, and files that say nothing or nonsense."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from outrider.engines.draft_file import read_card
from outrider.errors import ArtifactCorruptError
from tests.models.gguf_files import write_out

ARRAY, UINT32, FLOAT32 = (
    gguf.GGUFValueType.ARRAY,
    gguf.GGUFValueType.UINT32,
    gguf.GGUFValueType.FLOAT32,
)


def write(
    path: Path,
    *,
    head_ids: tuple[int, ...] | None = (7, 2, 5),
    rows: int = 3,
    digest: str = "ab" * 32,
    begins: tuple[int, ...] = (0, 3),
    calibration: tuple[float, ...] | float = (0.0, 0.25, 0.5, 0.0, 0.5, 1.0),
) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_vocab_size(8)
    if head_ids is not None:
        writer.add_string("outrider.draft.target", "a-target")
        writer.add_string("outrider.draft.vocabulary_digest", digest)
        writer.add_key_value("outrider.draft.head_ids", list(head_ids), ARRAY, sub_type=UINT32)
        name = "outrider.draft.calibration_begins"
        writer.add_key_value(name, list(begins), ARRAY, sub_type=UINT32)
        for kind in ("greedy", "sampled"):
            name = f"outrider.draft.calibration_{kind}"
            if isinstance(calibration, float):
                writer.add_float32(name, calibration)
            else:
                writer.add_key_value(name, list(calibration), ARRAY, sub_type=FLOAT32)
    writer.add_tensor("output.weight", np.zeros((rows, 4), np.float32))
    write_out(writer)
    return path


def test_the_head_comes_in_the_order_of_its_ids(tmp_path: Path) -> None:
    card = read_card(write(tmp_path / "d.gguf"))
    assert card is not None
    assert card.target == "a-target" and card.vocabulary_digest == bytes([0xAB] * 32)
    assert card.head_ids.tolist() == [2, 5, 7]
    assert card.head_order.tolist() == [1, 2, 0]
    assert card.calibration.begins == (0, 3)
    assert card.calibration.greedy == ((0.0, 0.25, 0.5), (0.0, 0.5, 1.0))


def test_a_model_without_a_card_is_no_trained_draft(tmp_path: Path) -> None:
    assert read_card(write(tmp_path / "d.gguf", head_ids=None)) is None


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"head_ids": (1, 2)}, "2 head ids"),
        ({"head_ids": (1, 2, 2)}, "not all different"),
        ({"head_ids": (1, 2, 8)}, "outside the vocabulary"),
        ({"digest": "no hex"}, "fromhex"),
        ({"calibration": (0.0, 2.0, 0.0, 1.0)}, "no list of chances"),
        ({"calibration": (0.0, float("nan"), 0.0, 1.0)}, "no list of chances"),
        ({"calibration": (0.0, 1.0)}, "no list of chances"),
        ({"calibration": (0.0, 0.5, 1.0)}, "3 calibration values for 2 ranges"),
        ({"begins": (1, 3)}, "do not ascend from"),
        ({"begins": (0, 0)}, "do not ascend from"),
        ({"calibration": 0.5}, "TypeError"),
    ],
)
def test_a_card_that_contradicts_itself(
    tmp_path: Path, values: dict[str, object], reason: str
) -> None:
    with pytest.raises(ArtifactCorruptError, match=reason):
        read_card(write(tmp_path / "d.gguf", **values))  # type: ignore[arg-type]
