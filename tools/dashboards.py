"""Grafana's dashboards as code: `python -m tools.dashboards` writes deploy/grafana/*.json.

A panel is a title, a unit and the queries of its lines. The same queries are run against a real
Prometheus by tests/e2e/test_prometheus.py, and drawn by `python -m tools.dashboard_pictures`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path(__file__).parents[1] / "deploy" / "grafana"
RATE_INTERVAL: Final = "$__rate_interval"
"""Grafana puts four scrape intervals or more in its place."""
_WIDTH: Final = 12
_HEIGHT: Final = 8
_PER_ROW: Final = 2


@dataclass(frozen=True, slots=True)
class Line:
    """One query of a panel."""

    expression: str
    legend: str
    """Text of the legend, with `{{label}}` for labels' values."""


@dataclass(frozen=True, slots=True)
class Panel:
    """A chart over time."""

    title: str
    unit: str
    """Grafana's name of the unit."""
    lines: tuple[Line, ...]
    description: str = ""


@dataclass(frozen=True, slots=True)
class Dashboard:
    """A page of panels."""

    uid: str
    title: str
    panels: tuple[Panel, ...]


def _rate(counter: str, by: str) -> str:
    return f"sum by ({by}) (rate({counter}[{RATE_INTERVAL}]))"


def _ratio(above: str, below: str, by: str) -> str:
    return f"{_rate(above, by)} / {_rate(below, by)}"


def _quantile(share: float, histogram: str, by: str) -> str:
    return f"histogram_quantile({share}, {_rate(f'{histogram}_bucket', f'le, {by}')})"


def _quantiles(histogram: str, by: str, legend: str) -> tuple[Line, ...]:
    return tuple(
        Line(_quantile(share, histogram, by), f"{legend} p{round(100 * share)}")
        for share in (0.5, 0.99)
    )


_MODEL: Final = "gen_ai_request_model"

CHATS: Final = Dashboard(
    "outrider-chats",
    "Outrider: chats",
    (
        Panel(
            "Chats",
            "reqps",
            (Line(_rate("outrider_edge_chats_total", "model, outcome"), "{{model}} {{outcome}}"),),
            "That ended, by outcome.",
        ),
        Panel(
            "Open chats",
            "short",
            (
                Line("sum by (instance) (outrider_edge_open_chats)", "chats {{instance}}"),
                Line("sum by (instance) (outrider_edge_open_connections)", "QUIC {{instance}}"),
            ),
        ),
        Panel(
            "First token",
            "s",
            _quantiles("outrider_ttft_seconds", f"job, {_MODEL}", "{{job}}"),
            "Shown at an edge, final at a replica. The objective is 120 ms.",
        ),
        Panel(
            "First tokens later than 120 ms",
            "percentunit",
            (
                Line("outrider:first_tokens_late:ratio_rate5m", "{{job}} 5 min"),
                Line("outrider:first_tokens_late:ratio_rate1h", "{{job}} 1 h"),
            ),
            "No more than 5 % by the objective.",
        ),
        Panel(
            "Further tokens",
            "s",
            _quantiles("outrider_token_latency_seconds", f"job, {_MODEL}", "{{job}}"),
            "Time between two commits, per token.",
        ),
        Panel(
            "Tokens of replies",
            "short",
            (Line(_rate("outrider_edge_tokens_total", "model"), "{{model}}"),),
            "Per second.",
        ),
        Panel(
            "Chats that failed for a reason of the mesh",
            "percentunit",
            (Line("outrider:chats_failed:ratio_rate5m", "{{model}} 5 min"),),
        ),
        Panel(
            "Refused at the edge",
            "reqps",
            (Line(_rate("outrider_edge_refused_total", "reason"), "{{reason}}"),),
        ),
    ),
)

SPECULATION: Final = Dashboard(
    "outrider-speculation",
    "Outrider: what speculation brings",
    (
        Panel(
            "Tokens shown before they were final",
            "short",
            (
                Line(_rate("outrider_edge_shown_tokens_total", "model"), "shown {{model}}"),
                Line(_rate("outrider_edge_erased_tokens_total", "model"), "taken back {{model}}"),
            ),
            "Per second.",
        ),
        Panel(
            "Time gained per token",
            "s",
            (
                Line(
                    _ratio(
                        "outrider_edge_sooner_seconds_total", "outrider_edge_tokens_total", "model"
                    ),
                    "{{model}}",
                ),
            ),
            "By how much sooner than its commit a token was on the screen, in the mean of all.",
        ),
        Panel(
            "Draft tokens that the model accepted",
            "short",
            (Line(_rate("outrider_draft_accepted_tokens_total", "instance"), "{{instance}}"),),
            "Per second: each is a token without an engine step of its own.",
        ),
        Panel(
            "Share of drafts that are wrong",
            "percentunit",
            (Line("outrider_draft_rejection_ratio", "{{instance}}"),),
        ),
        Panel(
            "Draft tokens of edges, by fate",
            "short",
            (Line(_rate("outrider_edge_drafts_total", "fate"), "{{fate}}"),),
            "Per second.",
        ),
        Panel(
            "Predicted gain",
            "percentunit",
            (Line("outrider_edge_predicted_gain_ratio", "{{model}}"),),
            "Share of the time per token that drafts save, of the chat that ended last.",
        ),
    ),
)

REGIONS: Final = Dashboard(
    "outrider-regions",
    "Outrider: regions and replicas",
    (
        Panel(
            "Replicas that take sessions",
            "short",
            (
                Line(
                    "max by (region, model) (outrider_router_serving_replicas)",
                    "{{region}} {{model}}",
                ),
                Line(
                    "max by (region, model) (outrider_router_desired_replicas)",
                    "{{region}} {{model}} desired",
                ),
            ),
        ),
        Panel(
            "Replicas by state",
            "short",
            (Line("max by (state) (outrider_router_replicas)", "{{state}}"),),
        ),
        Panel(
            "Utilization",
            "percentunit",
            (
                Line(
                    "max by (region, model) (outrider_router_utilization_ratio)",
                    "{{region}} {{model}}",
                ),
            ),
            "Sessions over slots, or queued work over the objective: may exceed 1.",
        ),
        Panel(
            "Sessions",
            "short",
            (
                Line("sum by (instance) (outrider_sessions_running)", "running {{instance}}"),
                Line("sum by (instance) (outrider_sessions_queued)", "queued {{instance}}"),
                Line(
                    "sum by (priority) (outrider_router_waiting_sessions)", "waiting {{priority}}"
                ),
            ),
        ),
        Panel(
            "KV cache in use",
            "percentunit",
            (Line("1 - outrider_kv_free_blocks / outrider_kv_blocks", "{{instance}}"),),
        ),
        Panel(
            "KV moved",
            "Bps",
            (Line(_rate("outrider_kv_transferred_bytes_total", "direction"), "{{direction}}"),),
            "To and from the prefix store, and between replicas.",
        ),
        Panel(
            "Prompt tokens, by where their KV came from",
            "short",
            (Line(_rate("outrider_kv_tokens_total", "tier"), "{{tier}}"),),
            "Per second.",
        ),
        Panel(
            "Overload",
            "short",
            (Line('outrider_overload_level{state!="normal"}', "{{instance}} {{state}}"),),
        ),
        Panel(
            "Chats moved to another replica",
            "reqps",
            (Line(_rate("outrider_router_moves_total", "replica"), "to {{replica}}"),),
        ),
        Panel(
            "Cost of tenants",
            "short",
            (Line(_rate("outrider_router_tenant_cost_total", "tenant"), "{{tenant}}"),),
            "Per second, in the configured currency; tenants without an entry count as *.",
        ),
    ),
)

PROCESSES: Final = Dashboard(
    "outrider-processes",
    "Outrider: processes",
    (
        Panel(
            "Event loop: latest callback",
            "s",
            (Line("outrider_loop_lag_max_seconds", "{{job}} {{instance}}"),),
        ),
        Panel(
            "Event loop: held by its own thread",
            "s",
            (Line("outrider_loop_blocked_max_seconds", "{{job}} {{instance}}"),),
        ),
        Panel(
            "Certificates end in",
            "s",
            (
                Line(
                    "outrider_certificate_not_after_timestamp_seconds - time()",
                    "{{job}} {{instance}} {{certificate}}",
                ),
            ),
        ),
        Panel(
            "Clock beside Prometheus's",
            "s",
            (
                Line(
                    "outrider_process_clock_timestamp_seconds "
                    "- timestamp(outrider_process_clock_timestamp_seconds)",
                    "{{job}} {{instance}}",
                ),
            ),
        ),
        Panel(
            "Engine",
            "percentunit",
            (
                Line(
                    f"sum by (instance, state) "
                    f"(rate(outrider_engine_time_seconds_total[{RATE_INTERVAL}]))",
                    "{{state}} {{instance}}",
                ),
            ),
            "Seconds a second with sessions to serve: computing, or waiting for Python.",
        ),
        Panel(
            "Texts found in the token cache",
            "percentunit",
            (
                Line(
                    _ratio(
                        "outrider_tokenization_cache_hits_total",
                        "outrider_tokenization_cache_texts_total",
                        "job",
                    ),
                    "{{job}}",
                ),
            ),
        ),
        Panel(
            "Open files",
            "short",
            (Line("outrider_process_files", "{{job}} {{instance}}"),),
        ),
        Panel(
            "Redis answers",
            "short",
            (Line("min by (instance) (outrider_kv_store_up)", "prefix store {{instance}}"),),
            "1, or 0 while it is left alone because it does not.",
        ),
    ),
)

DASHBOARDS: Final = (CHATS, SPECULATION, REGIONS, PROCESSES)


def render(dashboard: Dashboard) -> dict[str, Any]:
    """A dashboard as Grafana imports it (schema version 39)."""
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "tags": ["outrider"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {
            "list": [
                {
                    "name": "datasource",
                    "label": "Prometheus",
                    "type": "datasource",
                    "query": "prometheus",
                }
            ]
        },
        "panels": [_panel(number, panel) for number, panel in enumerate(dashboard.panels)],
    }


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${datasource}"}
    row, column = divmod(number, _PER_ROW)
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.description,
        "datasource": source,
        "gridPos": {"x": column * _WIDTH, "y": row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}},
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": source,
                "expr": line.expression,
                "legendFormat": line.legend,
                "exemplar": "outrider_ttft_seconds" in line.expression,
            }
            for index, line in enumerate(panel.lines)
        ],
    }


def text_of(dashboard: Dashboard) -> str:
    """Its file."""
    return json.dumps(render(dashboard), indent=2) + "\n"


def main() -> None:
    """Write all files."""
    FOLDER.mkdir(exist_ok=True)
    for dashboard in DASHBOARDS:
        path = FOLDER / f"{dashboard.uid}.json"
        path.write_text(text_of(dashboard), "utf-8")
        print(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


if __name__ == "__main__":
    main()
