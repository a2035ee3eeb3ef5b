"""The constraints that a replica must meet to get a session, and the error if none meets them.
Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container, Iterable
from typing import Final

import numpy as np

from outrider.errors import (
    NoReplicaError,
    OutriderError,
    OverloadedError,
    UnknownModelError,
    VocabularyMismatchError,
)
from outrider.model_identity import same_model, short_form
from outrider.session.types import Priority
from services.router.fleet.replica import Replica
from services.router.placement.replica_table import Bools, ReplicaTable
from services.router.placement.types import RETRY_DELAY_MS, PlacementPolicy
from services.router.session_request import SessionRequest

_OTHER_IDENTITY: Final = "model_identity"
"""Cause in the metadata of a refusal."""
_MAX_LISTED: Final = 4
"""Identities named in a refusal, the most frequent ones."""


def able(
    table: ReplicaTable,
    request: SessionRequest,
    policy: PlacementPolicy,
    exclude: Collection[str] = (),
) -> Bools:
    """[rows] whether a replica meets every constraint and is none of `exclude`."""
    found = in_reach(table, request, exclude)
    found &= table.counts["min_priority"] <= request.priority
    max_queue = np.minimum(table.counts["max_queue"], policy.max_queued)
    found &= table.num_excess[request.priority - 1] <= max_queue
    return found


def may_differ(table: ReplicaTable, request: SessionRequest) -> bool:
    """Whether a replica of another model identity may have a session that has tokens: it is
    allowed, and none of its own identity could have it if it were idle."""
    if request.identity is None or not request.allows_inexact:
        return False
    # One that was tried and refused the session may be full for a moment.
    return not in_reach(table, request).any()


def in_reach(table: ReplicaTable, request: SessionRequest, exclude: Collection[str] = ()) -> Bools:
    """[rows] whether a replica could have the session if it were idle; none of `exclude` could."""
    model = table.models.find((request.model, request.vocabulary_digest))
    found: Bools = table.schedulable & (table.counts["model"] == model)
    if request.residency:
        regions = table.counts["region"]
        allowed = np.zeros(len(table), dtype=np.bool_)
        for region in request.residency:
            allowed |= regions == table.regions.find(region)
        found &= allowed
    if exclude:
        found[table.rows(exclude)] = False
    if request.identity is not None:
        # Few sessions have tokens when they are placed: a column of codes would seldom be read.
        identity = request.identity
        found &= np.fromiter((same_model(it, identity) for it in table.identities), np.bool_)
    return found


def refusal(
    request: SessionRequest,
    replicas: Iterable[Replica],
    table: ReplicaTable,
    exclude: Collection[str] = (),
) -> OutriderError:
    """Why no replica may have the session: the first of these reasons that applies. `exclude`:
    replicas already tried for it."""
    known = list(replicas)
    found = [replica for replica in known if replica.model_name in ("", request.model)]
    if not found:
        return _unknown_model(request, known)
    digests = (None, request.vocabulary_digest)
    fitting = [r for r in found if (r.model and r.model.vocabulary_digest) in digests]
    if not fitting:
        return _wrong_vocabulary(request, found)
    allowed = [r for r in fitting if not request.residency or r.region in request.residency]
    if not allowed:
        return _outside_residency(request, fitting)
    if rows := np.flatnonzero(in_reach(table, request, exclude)).tolist():
        return OverloadedError(
            f"every replica of model {request.model} is full ({_occupancy(table, rows)}); try "
            "again later",
            retry_delay_ms=RETRY_DELAY_MS,
        )
    if request.identity is not None and not in_reach(table, request).any():
        others = [it for it in allowed if it.takes_sessions and it.name not in exclude]
        if others:
            return _other_identities(request, others)
    return NoReplicaError(
        f"no replica can serve model {request.model} now ({_states(allowed, exclude)}); try again "
        "in a moment",
        retry_delay_ms=RETRY_DELAY_MS,
    )


def is_other_identity(error: OutriderError) -> bool:
    """Whether the error means that all replicas that could serve the session compute
    differently."""
    return error.metadata.get("cause") == _OTHER_IDENTITY


def _other_identities(request: SessionRequest, others: list[Replica]) -> OutriderError:
    counts = Counter(short_form(replica.model_identity) for replica in others)
    listed = ", ".join(f"{count} as {it}" for it, count in counts.most_common(_MAX_LISTED))
    return NoReplicaError(
        f"the reply was begun by a replica of model {request.model} that computes as "
        f"{short_form(request.identity or b'')} and is not in service, and the others compute "
        f"differently ({listed}), so their text would not continue it; ask again for a new reply, "
        "or set allow_inexact in [[router.tenants]]",
        retry_delay_ms=RETRY_DELAY_MS,
        metadata={"cause": _OTHER_IDENTITY},
    )


def _unknown_model(request: SessionRequest, known: list[Replica]) -> OutriderError:
    if not known:
        return NoReplicaError("this router has no replicas; list them in [[router.replicas]]")
    names = ", ".join(sorted({replica.model_name for replica in known}))
    return UnknownModelError(f"no replica serves model {request.model}; use one of {names}")


def _wrong_vocabulary(request: SessionRequest, found: list[Replica]) -> OutriderError:
    ours = sorted({r.model.vocabulary_digest.hex() for r in found if r.model})
    theirs = request.vocabulary_digest.hex()
    return VocabularyMismatchError(
        f"the ids are of vocabulary {theirs or '(none)'} but model {request.model} has "
        f"{', '.join(ours)}; send messages, or use that vocabulary",
        metadata={"ours": ",".join(ours), "theirs": theirs},
    )


def _outside_residency(request: SessionRequest, fitting: list[Replica]) -> OutriderError:
    held = ", ".join(sorted({replica.region for replica in fitting}))
    return NoReplicaError(
        f"model {request.model} has no replica in {', '.join(request.residency)}, where the "
        f"prompt may be held, only in {held}; widen the residency"
    )


def _states(replicas: Iterable[Replica], tried: Container[str]) -> str:
    return ", ".join(
        f"{replica.name} {'tried' if replica.name in tried else replica.state.name}"
        for replica in replicas
    )


def _occupancy(table: ReplicaTable, rows: list[int]) -> str:
    counts = table.counts
    return ", ".join(
        f"{table.names[row]} {table.num_sessions[0, row]} of {counts['max_sessions'][row]}"
        f"{', overloaded' if counts['min_priority'][row] > Priority.LOW else ''}"
        for row in rows
    )
