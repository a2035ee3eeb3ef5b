"""Prometheus's own judge of deploy/prometheus/alerts.yml: a mesh that is well fires nothing, and
each incident fires its alert and no other."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.promtool import complaints

ROOT = Path(__file__).parents[2]
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yml"
RUNBOOK = ROOT / "docs" / "guides" / "runbook.md"
MINUTES = 90
CHAT = 'gen_ai_operation_name="chat", gen_ai_provider_name="outrider", gen_ai_request_model="small"'
EDGE = 'job="edge", instance="e0"'
ROUTER = 'job="router", instance="r0"'
REPLICA = 'job="inference", instance="a"'
STATES = ("connecting", "ready", "suspect", "down", "draining", "quarantined", "trial")
LEVELS = ("normal", "no_drafts", "small_chunks", "queue_low", "refuse")
TTFT = "outrider_ttft_seconds"
NOT_AFTER = "outrider_certificate_not_after_timestamp_seconds"
LIST_ENDS = "outrider_edge_list_valid_until_timestamp_seconds"
DAY_S = 86_400


def constant(value: float) -> str:
    return f"{float(value)}x{MINUTES}"


def rising(per_minute: float, start: float = 0.0) -> str:
    return f"{start}+{per_minute}x{MINUTES}"


def in_state(replica: str, region: str, state: str) -> dict[str, str]:
    """Rows of a replica that is in one state all the time."""
    labels = f'{ROUTER}, replica="{replica}", region="{region}"'
    return {
        f'outrider_router_replica_state{{{labels}, state="{each}"}}': constant(each == state)
        for each in STATES
    }


def at_level(level: str) -> dict[str, str]:
    return {
        f'outrider_overload_level{{{REPLICA}, state="{each}"}}': constant(each == level)
        for each in LEVELS
    }


def late(share: float) -> dict[str, str]:
    return {
        f'{TTFT}_bucket{{{EDGE}, {CHAT}, le="0.12"}}': rising(1000 * (1 - share)),
        f"{TTFT}_count{{{EDGE}, {CHAT}}}": rising(1000),
    }


def failed(share: float) -> dict[str, str]:
    chats = f'outrider_edge_chats_total{{{EDGE}, model="small", outcome='
    return {
        f'{chats}"OK"}}': rising(1000 * (1 - share)),
        f'{chats}"NO_REPLICA"}}': rising(1000 * share),
        f'{chats}"CANCELLED"}}': rising(10),
    }


def ends_after(days: float, certificate: str = "mesh") -> dict[str, str]:
    labels = f'{EDGE}, certificate="{certificate}", file="/c"'
    return {f"{NOT_AFTER}{{{labels}}}": constant(days * DAY_S)}


def list_ends_after(days: float) -> dict[str, str]:
    return {f"{LIST_ENDS}{{{EDGE}}}": constant(days * DAY_S)}


def up(job: str, instance: str, is_up: bool = True) -> dict[str, str]:
    return {f'up{{job="{job}", instance="{instance}"}}': constant(is_up)}


def waiting(priority: str, num_sessions: int) -> dict[str, str]:
    labels = f'{ROUTER}, model="small", priority="{priority}"'
    return {f"outrider_router_waiting_sessions{{{labels}}}": constant(num_sessions)}


def store(is_up: bool) -> dict[str, str]:
    return {f"outrider_kv_store_up{{{REPLICA}}}": constant(is_up)}


def token_cache(is_up: bool) -> dict[str, str]:
    labels = 'job="tokenizer", instance="t0"'
    return {f"outrider_tokenization_shared_cache_up{{{labels}}}": constant(is_up)}


def clock(seconds_ahead: float) -> dict[str, str]:
    return {f"outrider_process_clock_timestamp_seconds{{{EDGE}}}": rising(60, seconds_ahead)}


def routers(state: str) -> dict[str, str]:
    return {
        f'outrider_edge_routers{{{EDGE}, state="{each}"}}': constant(each == state)
        for each in STATES
    }


def cached(share: float, per_minute: float, content: str = "system") -> dict[str, str]:
    labels = f'{EDGE}, content="{content}"'
    return {
        f"outrider_tokenization_cache_hits_total{{{labels}}}": rising(per_minute * share),
        f"outrider_tokenization_cache_texts_total{{{labels}}}": rising(per_minute),
    }


def stalls(per_minute: float) -> dict[str, str]:
    return {f'outrider_loop_stalls_total{{{EDGE}, during="other"}}': rising(per_minute)}


WELL = {
    **late(0.04),
    **failed(0.0002),
    **in_state("a", "us", "ready"),
    **in_state("b", "us", "ready"),
    **in_state("c", "eu", "ready"),
    **ends_after(2.5),
    **ends_after(10, "clients"),
    **ends_after(900, "mesh_ca"),
    **list_ends_after(8),
    **{
        key: value
        for job, instance in (("edge", "0"), ("router", "0"), ("router", "1"), ("inference", "0"))
        for key, value in up(job, instance).items()
    },
    **waiting("HIGH", 0),
    **waiting("LOW", 90),
    **at_level("normal"),
    **store(True),
    **token_cache(True),
    **clock(0.5),
    **routers("ready"),
    # Few texts say nothing of the cache.
    **cached(0.1, 30),
    **cached(1.0, 4000, "role_tag"),
    **cached(0.1, 1000, "user"),
    **stalls(30),
}
"""Series of a mesh that nobody has to look at."""


@dataclass(frozen=True)
class Incident:
    """What differs from WELL, and what fires: each alert with how many rows it has."""

    series: dict[str, str]
    fires: dict[str, int]
    at_minutes: int = 80


INCIDENTS = {
    "a tenth of the first tokens is late": Incident(late(0.1), {"OutriderFirstTokensLate": 1}),
    "nearly all first tokens are late": Incident(late(0.8), {"OutriderFirstTokensLate": 2}),
    "chats fail": Incident(failed(0.02), {"OutriderChatsFail": 1}),
    "a replica is down": Incident(in_state("b", "us", "down"), {"OutriderReplicaLost": 1}),
    "a replica is silent": Incident(in_state("b", "us", "suspect"), {"OutriderReplicaLost": 1}),
    "a replica fails": Incident(in_state("b", "us", "quarantined"), {"OutriderReplicaLost": 1}),
    "a region is down": Incident(in_state("c", "eu", "down"), {"OutriderRegionLost": 1}),
    "a region of two is down": Incident(
        in_state("a", "us", "down") | in_state("b", "us", "down"), {"OutriderRegionLost": 1}
    ),
    "an edge without routers": Incident(routers("down"), {"OutriderRoutersLost": 1}),
    "all routers are gone": Incident(
        routers("down") | up("router", "0", is_up=False) | up("router", "1", is_up=False),
        {"OutriderRoutersLost": 1},
    ),
    "a router of two is gone": Incident(up("router", "1", is_up=False), {"OutriderServiceDown": 1}),
    "an edge is gone": Incident(up("edge", "0", is_up=False), {"OutriderServiceDown": 1}),
    "a certificate ends today": Incident(ends_after(0.5), {"OutriderCertificateExpires": 1}),
    "a certificate ends now": Incident(ends_after(0.1), {"OutriderCertificateExpires": 2}),
    "the edge's certificate ends today": Incident(
        ends_after(0.5, "clients"), {"OutriderCertificateExpires": 1}
    ),
    "the CA ends this month": Incident(
        ends_after(20, "mesh_ca"), {"OutriderCertificateExpires": 1}
    ),
    "a list of edges ends this week": Incident(list_ends_after(6), {"OutriderEdgeListEnds": 1}),
    "the queue stays": Incident(waiting("HIGH", 3), {"OutriderQueueStays": 1}),
    "a replica refuses": Incident(at_level("refuse"), {"OutriderOverload": 1}),
    "a replica lets LOW wait": Incident(at_level("queue_low"), {"OutriderOverload": 1}),
    "the prefix store is gone": Incident(store(False), {"OutriderStoreLost": 1}),
    "the token cache is gone": Incident(token_cache(False), {"OutriderStoreLost": 1}),
    "a drain does not end": Incident(in_state("b", "us", "draining"), {"OutriderDrainStuck": 1}),
    "a region's drain does not end": Incident(
        in_state("c", "eu", "draining"), {"OutriderDrainStuck": 1}
    ),
    "a clock is ahead": Incident(clock(60), {"OutriderClockWrong": 1}),
    "a clock is behind": Incident(clock(-60), {"OutriderClockWrong": 1}),
    "system messages do not repeat": Incident(cached(0.4, 120), {"OutriderTokenCacheMisses": 1}),
    "a loop is held up": Incident(stalls(120), {"OutriderEventLoopStalls": 1}),
    "nothing": Incident({}, {}),
}


def declared_alerts() -> list[dict[str, object]]:
    groups = yaml.safe_load(ALERTS.read_text("utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"] if "alert" in rule]


@pytest.mark.parametrize("name", INCIDENTS)
async def test_an_incident_fires_its_alert_and_no_other(name: str, tmp_path: Path) -> None:
    incident = INCIDENTS[name]
    assert incident.series.keys() <= WELL.keys(), "an incident changes what a mesh says"
    firing = 'count by (alertname) (ALERTS{alertstate="firing"})'
    series = [
        {"series": key, "values": value} for key, value in {**WELL, **incident.series}.items()
    ]
    rows = [
        {"labels": f'{{alertname="{alert}"}}', "value": count}
        for alert, count in incident.fires.items()
    ]
    cases = {
        "rule_files": [str(ALERTS)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": series,
                "promql_expr_test": [
                    # What has not lasted yet is nothing yet.
                    {"expr": firing, "eval_time": "0m", "exp_samples": []},
                    {"expr": firing, "eval_time": f"{incident.at_minutes}m", "exp_samples": rows},
                ],
            }
        ],
    }
    path = tmp_path / "incident.yml"
    path.write_text(yaml.safe_dump(cases), "utf-8")
    assert await complaints("test", "rules", str(path)) == ""


async def test_the_rules_are_valid_and_each_alert_has_an_incident() -> None:
    assert await complaints("check", "rules", str(ALERTS)) == ""
    declared = {rule["alert"] for rule in declared_alerts()}
    assert declared == {alert for it in INCIDENTS.values() for alert in it.fires}


def test_each_alert_has_a_severity_and_a_section_of_the_runbook() -> None:
    sections = {
        heading.lower() for heading in re.findall(r"^## (\w+)$", RUNBOOK.read_text("utf-8"), re.M)
    }
    for rule in declared_alerts():
        labels, annotations = rule["labels"], rule["annotations"]
        assert isinstance(labels, dict) and isinstance(annotations, dict)
        assert labels["severity"] in ("page", "ticket"), rule["alert"]
        page, _, anchor = annotations["runbook_url"].partition("#")
        assert ROOT / page == RUNBOOK and anchor == str(rule["alert"]).lower()
        assert anchor in sections, rule["alert"]
    assert {str(rule["alert"]).lower() for rule in declared_alerts()} <= sections
