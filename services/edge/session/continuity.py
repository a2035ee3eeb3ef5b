"""Which model computed the tokens of a reply, and whether they are what it alone would have
written."""

from __future__ import annotations

from typing import NamedTuple

from outrider.model_identity import same_model


class CommitOrigin(NamedTuple):
    """Origin of a commit's tokens."""

    identity: bytes | None = None
    """Identity of the replica's model; None: the same as for the commit before."""
    is_inexact: bool = False
    """Another model computed the tokens before them, or their replica calls them inexact."""


SAME_ORIGIN = CommitOrigin()


class ModelContinuity:
    """The model of one reply, over all the replicas that have it one after the other."""

    def __init__(self, identity: bytes, *, has_tokens: bool) -> None:
        """`identity`: of the model that computed the tokens of earlier runs, if it `has_tokens`
        from there."""
        self.identity = identity
        """Identity of the model that computed the last token; empty: unknown, or no token
        exists."""
        self.is_inexact = False
        """Whether one model continued what another one had begun, or a replica used inexact
        KV."""
        self._has_tokens = has_tokens
        self._on_replica: bytes | None = None
        """Model identity of a replica that has not committed yet; None: the present replica has
        committed."""

    def placed(self, identity: bytes) -> None:
        """A replica of this model identity has the reply now."""
        self._on_replica = identity

    def committed(self, *, is_inexact: bool = False) -> CommitOrigin:
        """That replica commits tokens, and says whether they are inexact."""
        self.is_inexact = self.is_inexact or is_inexact
        if self._on_replica is None:
            return CommitOrigin(is_inexact=True) if is_inexact else SAME_ORIGIN
        before, self.identity, self._on_replica = self.identity, self._on_replica, None
        is_other = self._has_tokens and not same_model(before, self.identity)
        self._has_tokens = True
        self.is_inexact = self.is_inexact or is_other
        identity = None if self.identity == before else self.identity
        return CommitOrigin(identity, is_inexact or is_other)
