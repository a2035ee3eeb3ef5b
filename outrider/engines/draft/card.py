"""What a draft's file says of itself.

A draft is a GGUF file without tokenizer and embedding, which are its target's, and with an output
head of a few rows, those ids that the target says most. `tools/train_draft` writes such files.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np

from outrider.engines.base import Ids
from outrider.engines.draft.calibration import Curve, DraftCalibration
from outrider.errors import ArtifactCorruptError
from outrider.models.gguf_file import content_of, open_gguf

PREFIX: Final = "outrider.draft."
_HEAD: Final = "output.weight"


@dataclass(frozen=True, slots=True)
class DraftCard:
    """The metadata of a trained draft."""

    target: str
    """The target's name."""
    vocabulary_digest: bytes
    head_ids: Ids
    """[r] what the head's rows stand for, ascending."""
    head_order: Ids
    """[r] the file's row for each of them."""
    calibration: DraftCalibration


def read_card(path: Path) -> DraftCard | None:
    """The card in a GGUF file; None for a model that is no trained draft.

    Raises ArtifactCorruptError if there is no whole GGUF file, or the card contradicts itself.
    """
    try:
        reader = open_gguf(path)
        if f"{PREFIX}head_ids" not in reader.fields:
            return None
        return _card(reader)
    except (ValueError, TypeError, IndexError, KeyError, OverflowError) as error:
        raise ArtifactCorruptError(
            f"{path.name} is no whole draft ({type(error).__name__}: {error}); fetch it again"
        ) from error


def _card(reader: gguf.GGUFReader) -> DraftCard:
    def value(name: str) -> Any:
        return content_of(reader, PREFIX + name)

    ids = np.array(value("head_ids"), np.int64)
    (num_rows,) = (int(t.shape[1]) for t in reader.tensors if t.name == _HEAD)
    vocabulary_size = int(content_of(reader, "llama.vocab_size"))
    if len(ids) != num_rows or len(np.unique(ids)) != num_rows:
        raise ValueError(f"{len(ids)} head ids, not all different, for {num_rows} rows")
    if not num_rows or ids.min() < 0 or ids.max() >= vocabulary_size:
        raise ValueError("a head id lies outside the vocabulary")
    order = np.argsort(ids).astype(np.int32)
    begins = tuple(int(begin) for begin in value("calibration_begins"))
    return DraftCard(
        target=str(value("target")),
        vocabulary_digest=bytes.fromhex(value("vocabulary_digest")),
        head_ids=ids[order].astype(np.int32),
        head_order=order,
        calibration=DraftCalibration(
            begins=begins,
            greedy=_curves(value("calibration_greedy"), len(begins)),
            sampled=_curves(value("calibration_sampled"), len(begins)),
        ),
    )


def _curves(values: list[float], count: int) -> tuple[Curve, ...]:
    """`count` curves of one length, which are in the file one after the other."""
    length, rest = divmod(len(values), max(1, count))
    if rest:
        raise ValueError(f"{len(values)} calibration values for {count} ranges")
    chances = [float(value) for value in values]
    return tuple(tuple(chances[at * length : (at + 1) * length]) for at in range(count))
