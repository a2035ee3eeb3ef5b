"""A real Prometheus scrapes a real mesh while incidents with real causes are staged there: each
sets off its alert and no other, and when it is over the alert is, too. For how long an expression
must hold is promtool's to test (tests/telemetry/test_alerts.py)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import pytest

from bench.harness.prometheus import Prometheus, jobs_of, running_prometheus
from tests.e2e import incidents
from tests.e2e.incidents import Begin, Stage, until
from tests.redis_server import redis_server
from tests.telemetry.test_alerts import declared_alerts

SCRAPE_S: Final = 0.5
EVALUATION_S: Final = 0.2

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(600)]

SLOW_MACHINE: Final = {"OutriderFirstTokensLate", "OutriderEventLoopStalls"}
"""Alerts that a machine with other work may set off by itself."""


@dataclass(frozen=True, slots=True)
class Incident:
    """What happens, and what is to be seen of it."""

    alert: str
    begin: Begin
    over: str = ""
    """The alert is about a share or a rate within a window, and ends when that has passed. A query
    that has rows when usual work is all that a Prometheus has seen."""


INCIDENTS: Final = {
    "a replica is killed": Incident("OutriderReplicaLost", incidents.killed("inference")),
    "a replica hangs": Incident("OutriderReplicaLost", incidents.standing_still("inference", 1)),
    "a region hangs": Incident("OutriderRegionLost", incidents.standing_still("inference", 2)),
    "a router of two hangs": Incident("OutriderServiceDown", incidents.standing_still("router", 1)),
    "all routers hang": Incident("OutriderRoutersLost", incidents.standing_still("router", 2)),
    "the tokenizer hangs": Incident(
        "OutriderServiceDown", incidents.standing_still("tokenizer", 1)
    ),
    "the edge is killed": Incident("OutriderServiceDown", incidents.killed("edge")),
    "a certificate of the mesh ends today": Incident(
        "OutriderCertificateExpires", incidents.mesh_certificate_ends
    ),
    "a CA of the mesh ends this month": Incident(
        "OutriderCertificateExpires", incidents.mesh_ca_ends
    ),
    "the edge's certificate ends today": Incident(
        "OutriderCertificateExpires", incidents.edge_certificate_ends
    ),
    "the list of edges ends this week": Incident("OutriderEdgeListEnds", incidents.edge_list_ends),
    "Redis is killed": Incident("OutriderStoreLost", incidents.redis_killed),
    "a replica's drain does not end": Incident("OutriderDrainStuck", incidents.drain_stuck),
    "a replica has too many chats": Incident("OutriderOverload", incidents.replica_overloaded),
    "chats fail": Incident(
        "OutriderChatsFail",
        incidents.chats_fail,
        over="outrider:chats_failed:ratio_rate5m == 0",
    ),
    "first tokens are late": Incident(
        "OutriderFirstTokensLate",
        incidents.first_tokens_late,
        over='outrider:first_tokens_late:ratio_rate5m{job="inference"} <= 0.05',
    ),
    "system messages are never the same": Incident(
        "OutriderTokenCacheMisses",
        incidents.system_messages_differ,
        over='rate(outrider_tokenization_cache_hits_total{content="system"}[30m]) > 0',
    ),
    "requests hold up an event loop": Incident(
        "OutriderEventLoopStalls",
        incidents.loop_stalls,
        over='sum(rate(outrider_loop_stalls_total{job="edge"}[5m])) <= 1',
    ),
}
WAITING: Final = Incident("OutriderQueueStays", incidents.queue_stays)
"""Some have waited all the time within a window."""
OF_WINDOWS: Final = {it.alert for it in INCIDENTS.values() if it.over}
NOT_STAGED: Final = {
    "OutriderClockWrong": "all processes of a machine have one clock, and Prometheus has it, too",
}


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with redis_server() as redis, incidents.stage(tmp_path_factory.mktemp("stage"), redis) as it:
        yield it


def waking(prometheus: Prometheus) -> set[str]:
    """Alerts whose expressions have rows."""
    alerts = [rule for rule in prometheus.rules() if rule["type"] == "alerting"]
    return {rule["name"] for rule in alerts if rule["state"] != "inactive"}


def watched(stage: Stage) -> AbstractContextManager[Prometheus]:
    """A Prometheus that begins now."""
    jobs = jobs_of(stage.mesh)
    return running_prometheus(jobs, interval_s=SCRAPE_S, evaluation_s=EVALUATION_S)


@pytest.fixture(scope="module")
def prometheus(stage: Stage) -> Iterator[Prometheus]:
    with watched(stage) as running:
        yield running


async def begun(prometheus: Prometheus) -> None:
    """Return when all targets were scraped, which takes some five seconds, and all rules evaluated
    after that."""
    await until(lambda: {it["health"] for it in prometheus.targets()} == {"up"})
    await up_to_date(prometheus)


async def up_to_date(prometheus: Prometheus) -> None:
    """Return when all targets were scraped from now on, and then all rules evaluated."""
    scraped_at = datetime.now(UTC)
    await until(lambda: _all_after(scraped_at, [it["lastScrape"] for it in prometheus.targets()]))
    evaluated_at = datetime.now(UTC)
    await until(
        lambda: _all_after(evaluated_at, [it["lastEvaluation"] for it in prometheus.rules()])
    )


def _all_after(moment: datetime, times: list[str]) -> bool:
    return bool(times) and all(datetime.fromisoformat(it) > moment for it in times)


async def wakes(prometheus: Prometheus, alerts: set[str]) -> None:
    """Return when these alerts have rows and no other has. A scrape that a busy machine answers too
    late is a service that is down, until the next one."""
    try:
        await until(lambda: waking(prometheus) - SLOW_MACHINE == alerts - SLOW_MACHINE)
    except AssertionError:
        raise AssertionError(f"{waking(prometheus)}, not {alerts}") from None


@pytest.mark.parametrize("name", INCIDENTS)
async def test_an_incident_sets_off_its_alert_and_no_other(
    name: str, stage: Stage, prometheus: Prometheus
) -> None:
    incident = INCIDENTS[name]
    await begun(prometheus)
    before = waking(prometheus) & OF_WINDOWS - {incident.alert}
    await wakes(prometheus, before)
    async with incident.begin(stage):
        await until(lambda: incident.alert in waking(prometheus))
        await up_to_date(prometheus)
        await wakes(prometheus, before | {incident.alert})
    if not incident.over:
        await wakes(prometheus, before)


async def test_a_queue_that_stays_sets_off_its_alert_and_no_other(stage: Stage) -> None:
    async with AsyncExitStack() as within:
        await within.enter_async_context(WAITING.begin(stage))
        with watched(stage) as prometheus:
            await begun(prometheus)
            await wakes(prometheus, {WAITING.alert})
            await within.aclose()
            await wakes(prometheus, set())


async def test_usual_work_sets_off_nothing_when_the_windows_have_passed(stage: Stage) -> None:
    over = {incident.over for incident in INCIDENTS.values() if incident.over}
    with watched(stage) as prometheus:
        await begun(prometheus)
        await incidents.usual_work(stage)
        await until(lambda: all(prometheus.query(query) for query in over))
        await up_to_date(prometheus)
        await wakes(prometheus, set())


def test_each_alert_has_an_incident_or_a_reason_why_none_is_staged() -> None:
    staged = {incident.alert for incident in (*INCIDENTS.values(), WAITING)}
    assert not staged & NOT_STAGED.keys()
    assert {str(rule["alert"]) for rule in declared_alerts()} == staged | NOT_STAGED.keys()
