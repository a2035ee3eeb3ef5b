"""A real Prometheus scrapes a real mesh: every rule is evaluated, and what alerts and dashboards
read is there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from bench.harness.local_mesh import LocalMesh, local_mesh
from bench.harness.prometheus import Prometheus, jobs_of, running_prometheus
from outrider.client import Message, SamplingParams, connect
from outrider.testing import eventually
from tools.dashboards import DASHBOARDS, FOLDER, RATE_INTERVAL, text_of

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(600)]

PROMPT = "Which trains leave first, and which of them is the fastest? " * 20
SAMPLING = SamplingParams(max_tokens=40, ignore_eos=True)
CONFIG = """
[router]
currency = "USD"

[[router.prices]]
prompt_per_million = 1.0
reply_per_million = 10.0
"""
_SELECTOR = re.compile(r"\b(?:outrider[\w:]+|up)\b(?:\{[^}]*\})?")


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalMesh]:
    config = tmp_path_factory.mktemp("config") / "outrider.toml"
    config.write_text(CONFIG, "utf-8")
    with local_mesh(
        engine="fake", http=True, config=config, shape=("--prefix-store", "redis")
    ) as running:
        yield running


@pytest.fixture(scope="module")
def prometheus(mesh: LocalMesh) -> Iterator[Prometheus]:
    with running_prometheus(jobs_of(mesh)) as running:
        yield running


async def chats(mesh: LocalMesh) -> None:
    """Some that begin alike, so that KV is found again."""
    host, port = mesh.edge
    async with connect(host, port, ca=mesh.ca) as client:
        for number in range(6):
            asked = [Message("user", f"{PROMPT}{number % 2}")]
            async with client.chat(asked, sampling=SAMPLING) as chat:
                assert len((await chat.result()).ids) == SAMPLING.max_tokens


def selectors(expression: str) -> set[str]:
    return set(_SELECTOR.findall(expression))


def queried() -> list[str]:
    """The queries of all panels, as Grafana sends them."""
    return [
        line.expression.replace(RATE_INTERVAL, "1m")
        for dashboard in DASHBOARDS
        for panel in dashboard.panels
        for line in panel.lines
    ]


async def test_before_the_first_chat_all_that_alerts_read_is_there_and_all_counters_of_panels(
    mesh: LocalMesh, prometheus: Prometheus
) -> None:
    await eventually(lambda: all(it["health"] == "up" for it in prometheus.targets()))
    read = {it for rule in prometheus.rules() for it in selectors(rule["query"])}
    assert len(read) > 15
    # Of a Redis and a list of edges that this mesh has not (tests/tokenizer, tests/e2e/incidents),
    # and a share of no drafts.
    read -= {
        "outrider_tokenization_shared_cache_up",
        "outrider_edge_list_valid_until_timestamp_seconds",
        "outrider_draft_rejection_ratio",
    }
    counters = re.compile(r"outrider_\w+_total")
    read |= {it for query in queried() for it in counters.findall(query)}
    # Tenants are known when they come.
    read -= {"outrider_router_tenant_cost_total"}
    missing = set(read)

    def all_there() -> bool:
        missing.difference_update([it for it in read if prometheus.query(it)])
        return not missing

    try:
        await eventually(all_there)
    except AssertionError:
        raise AssertionError(f"absent: {sorted(missing)}") from None


async def test_no_panel_is_empty_where_chats_ran(mesh: LocalMesh, prometheus: Prometheus) -> None:
    await _filled(set(queried()), mesh, prometheus)


async def _filled(missing: set[str], mesh: LocalMesh, prometheus: Prometheus) -> None:
    """Chat until none of these queries is empty; some need a draft that was judged."""
    for _ in range(5):
        await chats(mesh)
        try:
            await eventually(lambda: _none_left(missing, prometheus), timeout_s=15)
        except AssertionError:
            continue
        return
    raise AssertionError(f"empty: {sorted(missing)}")


def _none_left(missing: set[str], prometheus: Prometheus) -> bool:
    missing.difference_update([it for it in missing if prometheus.query(it)])
    return not missing


async def test_every_rule_is_evaluated_without_an_error(
    mesh: LocalMesh, prometheus: Prometheus
) -> None:
    rules = prometheus.rules()
    assert {it["health"] for it in rules} == {"ok"}, [it.get("lastError") for it in rules]
    short = {"ttft_ms", "token_latency_ms", "batch_utilization", "rejection_rate", "kv_sync_bytes"}
    await _filled(short, mesh, prometheus)


def test_dashboards_are_what_their_code_says() -> None:
    files = {path.name: path.read_text("utf-8") for path in FOLDER.glob("*.json")}
    assert files == {f"{it.uid}.json": text_of(it) for it in DASHBOARDS}, (
        "run python -m tools.dashboards"
    )
    for text in files.values():
        panels = json.loads(text)["panels"]
        assert len({panel["id"] for panel in panels}) == len(panels) >= 6
        assert all(panel["targets"] for panel in panels)
