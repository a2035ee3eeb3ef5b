"""What the promises of sources of drafts are worth before a chat was seen, by place in the reply.

`NAME.sources.json` in this package's data holds, for the vocabulary whose digest it names, one line
per source, kind of reply and bucket of positions.py. `python -m tools.train_draft
calibrate-sources` fits it on recorded replies. Where there is none, promises are taken at their
word; a wrong one costs speed and text that is taken back, and is soon unlearned.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from math import exp, isfinite, log
from pathlib import Path
from typing import Final, TypeAlias

from outrider.errors import ArtifactCorruptError
from outrider.speculation.positions import POSITION_BEGINS

_CLOSEST: Final = 0.005
"""Chances are told apart down to this distance from 0 and 1."""
LEAST_SLOPE: Final = 0.2
MOST_SLOPE: Final = 2.0
MOST_SHIFT: Final = 4.0
"""Of log-odds, either way."""


def logit(chance: float) -> float:
    """Log-odds of a chance, which is taken to be no nearer to 0 and 1 than is told apart."""
    near = min(max(chance, _CLOSEST), 1 - _CLOSEST)
    return log(near / (1 - near))


def sigmoid(x: float) -> float:
    """The chance of these log-odds."""
    return 1 / (1 + exp(-x))


@dataclass(frozen=True, slots=True)
class Platt:
    """chance = sigmoid(shift + slope * logit(promise)) (Platt, 1999). The default takes a promise
    at its word."""

    shift: float = 0.0
    slope: float = 1.0

    def __post_init__(self) -> None:
        """Raises ValueError for what would not keep the order of promises, or is no number."""
        if not (isfinite(self.shift) and isfinite(self.slope) and self.slope > 0):
            raise ValueError(f"shift {self.shift} and slope {self.slope} are no Platt scaling")

    def chance(self, promise: float) -> float:
        """The chance that a draft is right, given all before it are; from what was promised."""
        return sigmoid(self.shift + self.slope * logit(promise))


Lines: TypeAlias = tuple[Platt, ...]
"""One per bucket of POSITION_BEGINS."""
_IDENTITY: Final[Lines] = (Platt(),) * len(POSITION_BEGINS)


@dataclass(frozen=True, slots=True)
class SourceCalibrations:
    """By source's name; the default takes every source at its word."""

    greedy: Mapping[str, Lines] = field(default_factory=dict)
    sampled: Mapping[str, Lines] = field(default_factory=dict)

    def of(self, source: str, *, are_sampled: bool) -> Lines:
        """For the drafts of one source in greedy replies, or in sampled ones."""
        return (self.sampled if are_sampled else self.greedy).get(source, _IDENTITY)

    def only(self, source: str) -> SourceCalibrations:
        """Those of one source; all others are taken at their word."""
        kinds = (self.greedy, self.sampled)
        return SourceCalibrations(*({s: kind[s] for s in (source,) if s in kind} for kind in kinds))


def to_json(vocabulary_digest: bytes, calibrations: SourceCalibrations) -> str:
    """The file form: a line of text per source, [shift, slope] by bucket."""
    parts = [
        f' "vocabulary_digest": "{vocabulary_digest.hex()}"',
        f' "position_begins": {json.dumps(list(POSITION_BEGINS))}',
    ]
    for kind, by_source in (("greedy", calibrations.greedy), ("sampled", calibrations.sampled)):
        rows = [
            f"  {json.dumps(source)}: {json.dumps([[line.shift, line.slope] for line in lines])}"
            for source, lines in sorted(by_source.items())
        ]
        parts.append(f' "{kind}": {{\n' + ",\n".join(rows) + "\n }")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def from_json(text: str) -> tuple[bytes, SourceCalibrations]:
    """Vocabulary digest and calibrations. Raises ArtifactCorruptError."""
    try:
        document = json.loads(text)
        if document["position_begins"] != list(POSITION_BEGINS):
            raise ValueError(f"positions {document['position_begins']}")
        kinds = [_by_source(document[kind]) for kind in ("greedy", "sampled")]
        return bytes.fromhex(document["vocabulary_digest"]), SourceCalibrations(*kinds)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArtifactCorruptError(
            f"calibrations of sources are damaged ({error}); install the package again"
        ) from error


def _by_source(document: Mapping[str, list[list[float]]]) -> dict[str, Lines]:
    found = {
        source: tuple(Platt(float(shift), float(slope)) for shift, slope in rows)
        for source, rows in document.items()
    }
    if any(len(lines) != len(POSITION_BEGINS) for lines in found.values()):
        raise ValueError("a source has not one line per range of positions")
    return found


def sources_file(model: str) -> Path:
    """Where this package keeps a model's."""
    return Path(str(resources.files("outrider.speculation"))) / "data" / f"{model}.sources.json"


@cache
def shipped_calibrations(vocabulary_digest: bytes) -> SourceCalibrations:
    """Those in this package for a vocabulary; promises are kept where there are none."""
    for entry in resources.files("outrider.speculation").joinpath("data").iterdir():
        if entry.name.endswith(".sources.json"):
            digest, calibrations = from_json(entry.read_text(encoding="utf-8"))
            if digest == vocabulary_digest:
                return calibrations
    return SourceCalibrations()
