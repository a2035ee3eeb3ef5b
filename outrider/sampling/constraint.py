"""The grammar of a reply, as samplers and drafters use it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

Mask: TypeAlias = npt.NDArray[np.bool_]


class Constraint(Protocol):
    """One reply's position in its grammar, and in its reasoning if that is limited: a function only
    of these, the vocabulary, the prompt and the committed ids. Advanced by committed ids only.

    Only `allowed` and `advance` raise: requests for the sake of drafts must not stop a call that
    other sessions share.
    """

    @property
    def allows_all(self) -> bool:
        """Whether any id may come next, as far as that is known without a mask."""
        ...

    def allowed(self) -> Mask:
        """[vocabulary_size] which ids may come next; at least one may. Raises InvalidSamplingError
        if the grammar exceeds its limits, or no id of the vocabulary can continue it."""
        ...

    def advance(self, token: int) -> None:
        """The next id of the reply. Raises InvalidRequestError for one that is not allowed."""
        ...

    def prepare(self, drafts: Sequence[int]) -> None:
        """Compute ahead of time what `allowed` will return now and behind each of these drafts."""
        ...

    def num_valid(self, drafts: Sequence[int]) -> int:
        """How many of these, from the first on, the grammar lets follow the committed ids."""
        ...

    def forced(self, max_tokens: int) -> tuple[int, ...]:
        """The next ids as long as the grammar leaves no choice: drafts that are nearly certain to
        be accepted."""
        ...
