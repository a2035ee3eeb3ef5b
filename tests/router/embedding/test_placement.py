"""Which replica gets inputs to embed."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from outrider.errors import NoReplicaError, UnknownModelError
from outrider.peers.health import PeerState
from services.router.embedding.placement import EmbeddingPlacement, estimated_tokens
from services.router.fleet.replica import Replica, ReplicaLoad, ServedModel
from tests.router.placement.fleet import replica

MODEL = ServedModel("e", b"", identity=b"1", dimensions=8)


def embedder(name: str, *, queued: int = 0, token_ms: float = 1.0, rtt_ms: float = 1.0) -> Replica:
    load = ReplicaLoad(queued_prompt_tokens=queued, row_ms=token_ms)
    return replica(name, model=MODEL, load=load, rtt_ms=rtt_ms)


def chosen(placement: EmbeddingPlacement, *replicas: Replica, tokens: int = 100) -> str:
    found = placement.choose(replicas, "e", tokens, identity=b"", residency=())
    return found.name


def test_whoever_is_done_first_gets_them() -> None:
    placement = EmbeddingPlacement(Random(1))
    assert chosen(placement, embedder("a", queued=500), embedder("b")) == "b"
    assert chosen(placement, embedder("a", queued=500), embedder("b", token_ms=9.0)) == "a"
    assert chosen(placement, embedder("a", rtt_ms=200.0), embedder("b", queued=150)) == "b"


def test_what_was_sent_counts_until_it_is_answered() -> None:
    placement, fleet = EmbeddingPlacement(Random(1)), [embedder("a"), embedder("b")]
    for expected in "abab":
        name = chosen(placement, *fleet)
        assert name == expected
        placement.sent(name, 100)
    placement.settled("a", 200)
    assert placement.sent_tokens("a") == 0
    assert chosen(placement, *fleet) == "a"


def test_only_those_that_may_are_asked() -> None:
    placement = EmbeddingPlacement(Random(1))
    down = replace(embedder("a"), health=replica("a", state=PeerState.DOWN).health)
    other = replace(embedder("b"), model=replace(MODEL, identity=b"2"))
    far = replace(embedder("c"), region="eu")
    fleet = [down, other, far, replica("chat")]

    def choose(**wanted: object) -> str:
        wanted = {"identity": b"", "residency": (), **wanted}
        return placement.choose(fleet, "e", 5, **wanted).name  # type: ignore[arg-type]

    assert choose(identity=b"2") == "b"
    assert choose(residency=("eu",)) == "c"
    assert choose(exclude=("b",)) == "c"
    for wanted in ({"identity": b"3"}, {"residency": ("us",)}, {"exclude": ("b", "c")}):
        with pytest.raises(NoReplicaError):
            choose(**wanted)
    with pytest.raises(UnknownModelError, match="those that embed here: e"):
        placement.choose(fleet, "m", 5, identity=b"", residency=())


@pytest.mark.parametrize("expected", ["", "e"])
def test_a_model_whose_replica_is_not_reached_yet_is_not_unknown(expected: str) -> None:
    placement = EmbeddingPlacement(Random(1))
    absent = replica("a", model=None, expected_model=expected, state=PeerState.DOWN)
    with pytest.raises(NoReplicaError, match="a DOWN"):
        placement.choose([absent, replica("chat")], "e", 5, identity=b"", residency=())
    if expected:
        with pytest.raises(UnknownModelError):
            placement.choose([absent], "m", 5, identity=b"", residency=())


def test_tokens_are_estimated_within_the_model() -> None:
    assert estimated_tokens(300, 0) == 102
    assert estimated_tokens(300, 64) == 64


def test_of_a_large_fleet_a_few_are_compared() -> None:
    """Routers that know the same spread what they send, and whoever may is found among many."""
    fleet = [embedder(f"r{number:03}", queued=number % 7) for number in range(200)]
    first = {chosen(EmbeddingPlacement(Random(seed)), *fleet) for seed in range(20)}
    assert len(first) > 10
    down = [replace(it, health=replica("d", state=PeerState.DOWN).health) for it in fleet[1:]]
    assert chosen(EmbeddingPlacement(Random(1)), fleet[0], *down) == "r000"
    with pytest.raises(NoReplicaError):
        chosen(EmbeddingPlacement(Random(1)), *down)
