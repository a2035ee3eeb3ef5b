"""Models, replicas and moves as a router sees them, as values that JSON has (pure): what
`outrider status --json` prints, and edges show to operators."""

from __future__ import annotations

from typing import Any, TypeAlias

from outrider.v1 import router_pb2

State: TypeAlias = dict[str, Any]
"""Values as JSON has them."""


def mesh_as_dict(
    models: router_pb2.ListModelsResponse, replicas: router_pb2.ListReplicasResponse
) -> State:
    """All of it."""
    return {
        "models": [_model_as_dict(fleet, models.default_model) for fleet in models.models],
        "replicas": [_replica_as_dict(replica) for replica in replicas.replicas],
        "moves": [_move_as_dict(move) for move in replicas.moves],
    }


def _move_as_dict(move: router_pb2.Move) -> State:
    return {
        "left": move.left,
        "replica": move.replica,
        "reason": move.reason,
        "pause_ms": round(move.pause_ms, 1),
        "age_s": round(move.age_s, 1),
    }


def _model_as_dict(fleet: router_pb2.ModelFleet, default_model: str) -> State:
    return {
        "name": fleet.model,
        "is_default": fleet.model == default_model,
        "vocabularies": [digest.hex() for digest in fleet.vocabulary_digests],
        "waiting_sessions": fleet.waiting_sessions,
        "regions": [_region_as_dict(region) for region in fleet.regions],
    }


def _region_as_dict(it: router_pb2.RegionFleet) -> State:
    return {
        "name": it.region,
        "replicas": it.replicas,
        "ready_replicas": it.ready_replicas,
        "sessions": it.sessions,
        "predicted_wait_ms": round(it.predicted_wait_ms, 1),
        "recent": {
            "window_s": it.recent.window_s,
            "first_tokens": it.recent.first_tokens,
            "ttft_p50_ms": round(it.recent.ttft_p50_ms, 1),
            "ttft_p95_ms": round(it.recent.ttft_p95_ms, 1),
            "ended": it.recent.ended,
            "completion_tokens": it.recent.completion_tokens,
            "draft_tokens": it.recent.draft_tokens,
            "accepted_tokens": it.recent.accepted_tokens,
        },
        "advice": _advice_as_dict(it.advice) if it.HasField("advice") else None,
    }


def _advice_as_dict(advice: router_pb2.ScalingAdvice) -> State:
    return {
        "desired_replicas": advice.desired_replicas,
        "late_ratio": round(advice.late_ratio, 4),
        "utilization_ratio": round(advice.utilization_ratio, 4),
    }


def _replica_as_dict(replica: router_pb2.Replica) -> State:
    state = router_pb2.ReplicaState.Name(replica.state).removeprefix("REPLICA_STATE_")
    return {
        "name": replica.name,
        "region": replica.region,
        "address": replica.address,
        "source": replica.source or "configured",
        "model": replica.model,
        "identity": replica.model_identity.hex(),
        "engine": replica.engine,
        "guarantees": list(replica.guarantees),
        "state": state,
        "state_s": round(replica.state_s, 1),
        "rtt_ms": round(replica.rtt_ms, 3),
        "min_rtt_ms": round(replica.min_rtt_ms, 3),
        "predicted_wait_ms": round(replica.predicted_wait_ms, 1),
        "sessions": replica.sessions,
        "running_sessions": replica.running_sessions,
        "queued_sessions": replica.queued_sessions,
        "max_sessions": replica.max_sessions,
        "kv_blocks_total": replica.kv_blocks_total,
        "kv_blocks_free": replica.kv_blocks_free,
        "overload_level": replica.overload_level,
        "kv": {
            "prompt_tokens": replica.kv.prompt_tokens,
            "pool_tokens": replica.kv.pool_tokens,
            "store_tokens": replica.kv.store_tokens,
            "sync_bytes": replica.kv.sync_bytes,
            "store_failures": replica.kv.store_failures,
            "peer_tokens": replica.kv.peer_tokens,
            "peer_bytes": replica.kv.peer_bytes,
            "peer_failures": replica.kv.peer_failures,
        },
        "static_prefixes": [
            {"name": it.name, "tokens": it.tokens, "tenants": list(it.tenants)}
            for it in replica.static_prefixes
        ],
        "quarantines": replica.quarantines,
        "inconsistent": replica.inconsistent,
    }
