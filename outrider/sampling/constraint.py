"""What a sampler and a drafter ask of the grammar that a reply has to follow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

Mask: TypeAlias = npt.NDArray[np.bool_]


class Constraint(Protocol):
    """One reply's position in its grammar: a function of the grammar, the vocabulary and the
    committed ids alone, however it came there. Advanced by committed ids only.

    Only `allowed` and `advance` raise: what is asked for drafts' sake stops no call of others.
    """

    def allowed(self) -> Mask:
        """[vocabulary_size] which ids may come next; at least one may. Raises InvalidSamplingError
        where the grammar costs more than its limits allow, or no id of the vocabulary can go on."""
        ...

    def advance(self, token: int) -> None:
        """The next id of the reply. Raises InvalidRequestError for one that is not allowed."""
        ...

    def prepare(self, drafts: Sequence[int]) -> None:
        """Compute what `allowed` will give now and behind each of these drafts, while there is
        time."""
        ...

    def num_valid(self, drafts: Sequence[int]) -> int:
        """How many of these, from the first on, the grammar lets follow the committed ids."""
        ...

    def forced(self, max_tokens: int) -> tuple[int, ...]:
        """The next ids where the grammar leaves no choice, as far as can be told without choosing:
        drafts that are nearly certain to be accepted."""
        ...
