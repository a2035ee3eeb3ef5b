"""Which model computed the tokens of a reply, and whether another one went on with them."""

from __future__ import annotations

from typing import NamedTuple

from outrider.model_identity import same_model


class CommitOrigin(NamedTuple):
    """Where the tokens of a commit come from."""

    identity: bytes | None = None
    """The model identity of their replica, unless it is that of the commit before."""
    is_inexact: bool = False
    """Another model computed the tokens before them."""


SAME_ORIGIN = CommitOrigin()


class ModelContinuity:
    """The model of one reply, over all the replicas that have it one after the other."""

    def __init__(self, identity: bytes, *, has_tokens: bool) -> None:
        """`identity`: of the model that computed the tokens of earlier runs, if it `has_tokens`
        from there."""
        self.identity = identity
        """Of the model that computed the last token; empty: unknown, or there is none."""
        self.is_inexact = False
        """Whether one model went on with what another one had begun."""
        self._has_tokens = has_tokens
        self._on_replica: bytes | None = None
        """Of a replica that has not committed yet; None: it has."""

    def placed(self, identity: bytes) -> None:
        """A replica of this model identity has the reply now."""
        self._on_replica = identity

    def committed(self) -> CommitOrigin:
        """That replica commits tokens."""
        if self._on_replica is None:
            return SAME_ORIGIN
        before, self.identity, self._on_replica = self.identity, self._on_replica, None
        is_inexact = self._has_tokens and not same_model(before, self.identity)
        self._has_tokens = True
        self.is_inexact = self.is_inexact or is_inexact
        return CommitOrigin(None if self.identity == before else self.identity, is_inexact)
