"""Which roles may call which gRPC method of the mesh (pure).

A method that is not listed here refuses all callers. docs/guides/certificates.md shows the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from outrider.errors import PermissionDeniedError
from outrider.tls.identity import PeerIdentity, Role

_ALL: Final = frozenset(Role)
_ROUTER: Final = frozenset({Role.ROUTER})
_ROUTER_OPERATOR: Final = frozenset({Role.ROUTER, Role.OPERATOR})

ACCESS: Final[Mapping[str, frozenset[Role]]] = {
    # Sessions of clients come from edges, and nobody else speaks for a tenant.
    "/outrider.v1.RouterService/Route": frozenset({Role.EDGE}),
    "/outrider.v1.EmbeddingRouterService/Embed": frozenset({Role.EDGE}),
    "/outrider.v1.EmbeddingRouterService/EmbedAtOnce": frozenset({Role.EDGE}),
    "/outrider.v1.RouterService/GetRouter": frozenset({Role.EDGE, Role.ROUTER, Role.OPERATOR}),
    # Refused by routers whose settings do not allow it.
    "/outrider.v1.RouterService/DescribeMesh": frozenset({Role.EDGE}),
    # What they tell is of everybody's sessions.
    "/outrider.v1.RouterService/ListModels": _ROUTER_OPERATOR,
    "/outrider.v1.RouterService/ListReplicas": _ROUTER_OPERATOR,
    "/outrider.v1.RouterService/Explain": _ROUTER_OPERATOR,
    # Takes capacity away.
    "/outrider.v1.RouterService/DrainReplica": frozenset({Role.OPERATOR}),
    "/outrider.v1.InferenceService/Generate": _ROUTER,
    "/outrider.v1.EmbeddingService/Embed": _ROUTER,
    "/outrider.v1.EmbeddingService/EmbedAtOnce": _ROUTER,
    "/outrider.v1.InferenceService/WatchLoad": _ROUTER,
    "/outrider.v1.InferenceService/WatchKv": _ROUTER,
    "/outrider.v1.InferenceService/GetModel": _ROUTER_OPERATOR,
    "/outrider.v1.InferenceService/Drain": _ROUTER_OPERATOR,
    # Text in other numbers: for replicas that compute the same.
    "/outrider.v1.KvTransferService/FetchKv": frozenset({Role.INFERENCE}),
    "/outrider.v1.TokenizerService/Encode": _ROUTER_OPERATOR,
    "/outrider.v1.TokenizerService/Decode": _ROUTER_OPERATOR,
    # An edge has the texts that it hands over.
    "/outrider.v1.TokenizerService/Tokenize": frozenset({Role.EDGE, Role.ROUTER, Role.OPERATOR}),
    "/outrider.v1.TokenizerService/Count": _ROUTER_OPERATOR,
    "/outrider.v1.TokenizerService/Detokenize": _ROUTER_OPERATOR,
    # A vocabulary is no secret; workers and edges tokenize with it.
    "/outrider.v1.TokenizerService/GetVocabulary": frozenset(
        {Role.EDGE, Role.ROUTER, Role.OPERATOR, Role.TOKENIZER_WORKER}
    ),
    # Reads parts of texts and decides on their ids.
    "/outrider.v1.TokenizerWorkService/Work": frozenset({Role.TOKENIZER_WORKER}),
    "/grpc.health.v1.Health/Check": _ALL,
    "/grpc.health.v1.Health/List": _ALL,
    "/grpc.health.v1.Health/Watch": _ALL,
}
"""By full method name."""

MODELS: Final = frozenset({Role.EDGE, Role.TOKENIZER, Role.INFERENCE, Role.MODELS, Role.OPERATOR})
"""Roles that may fetch models over HTTP (`outrider models serve`): processes that load them, and
operators."""


def check(identity: PeerIdentity, method: str) -> None:
    """Raises PermissionDeniedError unless the method answers to that role."""
    if identity.role not in ACCESS.get(method, frozenset()):
        raise PermissionDeniedError(f"{method} does not answer to the role {identity.role}")
