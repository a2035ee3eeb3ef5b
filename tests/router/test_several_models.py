"""Models of one mesh are kept apart, also where they have one vocabulary: what one lacks, or has
cached, says nothing of the other."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

import pytest

from outrider.errors import OverloadedError
from outrider.peers.health import PeerState
from outrider.session.types import Priority
from services.router.admission.admission import Admission
from services.router.admission.policy import AdmissionPolicy
from services.router.admission.queue import MIN_SAMPLES
from services.router.admission.routing import Route
from services.router.autoscale.advisor import AutoscaleAdvisor, FleetKey, fleet_usage
from services.router.autoscale.policy import AutoscalePolicy
from services.router.fleet.entries import ReplicaConfig
from services.router.fleet.model_fleets import PredictedLoad, RegionFleet, model_fleets
from services.router.fleet.registry import Registry
from services.router.fleet.replica import ServedModel
from services.router.placement.types import Decision
from services.router.prefix_index.prompt import TokenIdReader
from services.router.session_request import SessionRequest
from services.router.upstream.kv_events import KvEventSubscriber
from tests.router.admission.fakes import FakeFleetView, Region, asking
from tests.router.placement.fleet import DIGEST, LOAD, MODEL, Town, replica

TWIN = replace(MODEL, name="twin")
"""Another model of the same vocabulary."""
FULL = replace(LOAD, running_sessions=4, max_sessions=4)
PROMPT = list(range(640))


# --- placement and prefixes ---


def test_what_one_model_has_cached_is_not_predicted_for_another_of_its_vocabulary() -> None:
    town = Town(replica("mine"), replica("twins", model=TWIN))
    town.hold("twins", PROMPT)
    town.send(replace(town.asking(PROMPT), model="twin"))

    decision = town.decide(town.asking(PROMPT))

    assert (decision.replica, decision.chosen.cached_tokens) == ("mine", 0)
    twin = town.decide(replace(town.asking(PROMPT), model="twin"))
    assert twin.chosen.cached_tokens == len(PROMPT)


def test_what_was_sent_to_one_model_is_not_expected_of_the_next_at_its_replica() -> None:
    town = Town(replica("a"))
    owner = town.placement.owner("a")
    events = KvEventSubscriber(town.prefixes, TokenIdReader(), town.placement.owner)
    events._follow(owner, MODEL)
    town.send(town.asking(PROMPT))
    events._follow(owner, MODEL)
    assert town.decide(town.asking(PROMPT)).chosen.cached_tokens == len(PROMPT)

    town.table.rows["a"].model = TWIN
    town.table.changed.add("a")
    events._follow(owner, TWIN)

    twin = replace(town.asking(PROMPT), model="twin")
    assert town.decide(twin).chosen.cached_tokens == 0


# --- admission ---


class TwoModels:
    """A fleet for each model, as admission sees them."""

    def __init__(self, **regions: Region) -> None:
        self.views = {name: FakeFleetView({"us": region}) for name, region in regions.items()}

    def home(self, request: SessionRequest) -> str:
        return self.views[request.model].home(request)

    def replica_set(self, request: SessionRequest) -> Hashable:
        return self.views[request.model].replica_set(request)

    def may_return(self, request: SessionRequest) -> bool:
        return self.views[request.model].may_return(request)

    def wakes(self, request: SessionRequest) -> bool:
        return self.views[request.model].wakes(request)

    def quote(self, request: SessionRequest, region: str, now: float) -> Decision:
        return self.views[request.model].quote(request, region, now)


def test_waits_are_predicted_by_model() -> None:
    admission = Admission(AdmissionPolicy(max_wait_medium_s=20.0))
    fleet = TwoModels(m=Region(is_full=True), twin=Region(is_full=True))
    now = 0.0
    for session in range(MIN_SAMPLES):
        # A replica of "m" gets free every 30 s.
        assert admission.open(*asking(session, Priority.LOW), fleet, now) is None
        now += 30.0
        fleet.views["m"].fleet["us"].is_full = False
        assert [type(it.outcome) for it in admission.dequeue(fleet, now)] == [Route]
        fleet.views["m"].fleet["us"].is_full = True

    with pytest.raises(OverloadedError, match="would pass before a replica had room"):
        admission.open(*asking(100), fleet, now)
    assert admission.open(*asking(101, model="twin"), fleet, now) is None


# --- fleet and advice ---


def registry_of(*models: str) -> Registry:
    configs = [ReplicaConfig(f"{model}{n}", "us", "h:1") for model in models for n in range(2)]
    registry = Registry(configs, rtt_ms=lambda _: 1.0, now=0.0)
    for config in configs:
        model = ServedModel(config.name[:-1], DIGEST, max_context_tokens=len(config.name))
        registry.connected(config.name, model, 0.0)
    return registry


def test_the_quarantine_of_one_model_leaves_room_for_that_of_another() -> None:
    registry = registry_of("m", "twin")
    for name in ("m0", "m1", "twin0"):
        for _ in range(10):
            registry.failed(name, "an engine call failed", 1.0)

    states = {it.name: it.state for it in registry}
    assert states["twin0"] is PeerState.QUARANTINED
    assert [states[name] for name in ("m0", "m1")].count(PeerState.QUARANTINED) == 1
    assert registry.models() == {"m", "twin"}


def test_load_and_lateness_of_one_model_advise_nothing_for_another() -> None:
    replicas = [
        replica("a", load=FULL),
        replica("b", model=TWIN, load=replace(FULL, running_sessions=2)),
    ]
    usage = fleet_usage(replicas, {FleetKey("us-east", "m"): 40}, slo_ms=500.0)
    mine, twins = FleetKey("us-east", "m"), FleetKey("us-east", "twin")
    assert usage[mine].utilization > 1.0 > usage[twins].utilization

    advisor = AutoscaleAdvisor(AutoscalePolicy(min_requests=1))
    advisor.advise(usage, 0.0)
    for _ in range(100):
        advisor.record_shortage(mine, 0.5)
    advice = advisor.advise(usage, 1000.0 / 1e3)
    assert advice[mine].desired_replicas > 1
    assert advice[twins].desired_replicas == 1


def test_which_models_are_served_where() -> None:
    other = replace(MODEL, vocabulary_digest=b"\x07" * 32)
    replicas = [
        replica("a"),
        replica("b", state=PeerState.DOWN),
        replica("c", region="eu-west", model=other),
        replica("d", region="eu-west", model=replace(TWIN)),
        replica("e", model=None),
    ]

    def load(name: str) -> PredictedLoad:
        return PredictedLoad(num_sessions=len(name), predicted_wait_ms=float(ord(name)))

    mine, twins = model_fleets(replicas, load)

    assert (mine.model, twins.model) == ("m", "twin")
    assert mine.vocabulary_digests == (DIGEST, other.vocabulary_digest)
    assert mine.regions == (
        RegionFleet("eu-west", 1, 1, 1, float(ord("c"))),
        RegionFleet("us-east", 2, 1, 2, float(ord("a"))),
    )
    assert twins.regions == (RegionFleet("eu-west", 1, 1, 1, float(ord("d"))),)
