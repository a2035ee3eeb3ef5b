"""Output of `outrider status`, as lines under headings. Pure: it takes the state that `--json`
prints."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from outrider.cli.columns import columns
from outrider.model_identity import short_form

_NONE: Final = "-"
"""Shown for a value that is not known yet."""


def lines(state: Mapping[str, Any], max_chars: int | None = None) -> Iterator[str]:
    """All lines: services of this machine (if any), models by region, replicas, the latest moves of
    sessions, tokenizers of this machine, and what provisional text brought (if any). Tables wider
    than `max_chars` continue below."""
    services, models, replicas = state["services"], state["models"], state["replicas"]
    if services:
        yield from _section("SERVICES", _services(services, state["host"]), 6, 1, max_chars)
    yield from _section("MODELS", _models(models), 2, 2, max_chars)
    yield from _section("REPLICAS", _replicas(replicas), 4, 1, max_chars)
    if any(map(_has_kv, replicas)):
        yield from _section("KV", _kv(replicas), 1, 1, max_chars)
    if state["moves"]:
        yield from _section("MOVES", _moves(state["moves"]), 2, 2, max_chars)
    if state["tokenizers"]:
        yield from _section("TOKENIZERS", _tokenizers(state["tokenizers"]), 5, 2, max_chars)
    if state["provisional"]:
        yield from _section("PROVISIONAL TEXT", _provisional(state["provisional"]), 2, 2, max_chars)
    yield from map(_warning, filter(_is_inconsistent, replicas))


def _section(
    heading: str,
    rows: Sequence[Sequence[str]],
    num_names: int,
    num_keys: int,
    max_chars: int | None,
) -> Iterator[str]:
    yield heading
    if len(rows) == 1:
        yield "  none"
    else:
        yield from columns(
            rows, num_names=num_names, indent="  ", num_keys=num_keys, max_chars=max_chars
        )
    yield ""


def _services(services: Iterable[Mapping[str, Any]], host: str) -> list[Sequence[str]]:
    head = ("NAME", "ROLE", "PID", "PORT", "METRICS", "STATE")
    return [head, *(_service(row, host) for row in services)]


def _service(row: Mapping[str, Any], host: str) -> Sequence[str]:
    told = ["up" if row["is_up"] else "DOWN, is started again"]
    if row["last_end"] is not None:
        told.append(last_end_text(row["last_end"]))
    if row["restarts"]:
        told.append(f"restarts {row['restarts']}")
    if row.get("rtt_ms"):
        told.append(f"{row['rtt_ms']:g} ms from the edges")
    metrics = f"http://{host}:{row['admin_port']}/metrics"
    return row["name"], row["role"], str(row["pid"]), str(row["port"]), metrics, ", ".join(told)


def last_end_text(end: Mapping[str, Any]) -> str:
    """`killed (signal 9) 14:38, back 14:39`, in local time."""
    text = f"{end['why']} {_clock(end['at_s'])}"
    return text if end["back_at_s"] is None else f"{text}, back {_clock(end['back_at_s'])}"


def _clock(at_s: float) -> str:
    return time.strftime("%H:%M", time.localtime(at_s))


def _models(models: Iterable[Mapping[str, Any]]) -> list[Sequence[str]]:
    head = (
        *("NAME", "REGION", "READY", "WANTED", "SESSIONS", "WAITING", "WAIT"),
        *("TTFT P50", "P95", "TOKENS/S", "ACCEPTED", "LATE", "BUSY"),
    )
    rows = [_model(model, region) for model in models for region in model["regions"]]
    return [head, *rows]


def _model(model: Mapping[str, Any], region: Mapping[str, Any]) -> Sequence[str]:
    recent, advice = region["recent"], region["advice"]
    has_tokens = bool(recent["first_tokens"])
    return (
        model["name"] + (" (default)" if model["is_default"] else ""),
        region["name"],
        f"{region['ready_replicas']}/{region['replicas']}",
        str(advice["desired_replicas"]) if advice else _NONE,
        str(region["sessions"]),
        str(model["waiting_sessions"]),
        _ms(region["predicted_wait_ms"]) if region["ready_replicas"] else _NONE,
        _ms(recent["ttft_p50_ms"]) if has_tokens else _NONE,
        _ms(recent["ttft_p95_ms"]) if has_tokens else _NONE,
        f"{recent['completion_tokens'] / recent['window_s']:.1f}" if recent["ended"] else _NONE,
        _percent(recent["accepted_tokens"], recent["draft_tokens"]),
        f"{advice['late_ratio']:.0%}" if advice else _NONE,
        f"{advice['utilization_ratio']:.0%}" if advice else _NONE,
    )


def _replicas(replicas: Iterable[Mapping[str, Any]]) -> list[Sequence[str]]:
    head = (
        *("NAME", "MODEL", "REGION", "STATE", "SINCE", "RTT", "WAIT", "RUNNING", "QUEUED"),
        *("KV", "IDENTITY", "ADDRESS"),
    )
    return [head, *map(_replica, replicas)]


def _replica(it: Mapping[str, Any]) -> Sequence[str]:
    # A round trip that was not measured is a guess, and marked so.
    about = "" if it["min_rtt_ms"] else "~"
    used_blocks = it["kv_blocks_total"] - it["kv_blocks_free"]
    return (
        it["name"],
        it["model"] or "unknown",
        it["region"],
        _state(it),
        _duration(it["state_s"]),
        f"{about}{it['rtt_ms']:.1f} ms",
        _ms(it["predicted_wait_ms"]),
        f"{it['running_sessions']}/{it['max_sessions']}" if it["max_sessions"] else _NONE,
        str(it["queued_sessions"]),
        _percent(used_blocks, it["kv_blocks_total"]),
        short_form(bytes.fromhex(it["identity"])),
        it["address"] + ("" if it["source"] == "configured" else f" ({it['source']})"),
    )


def _has_kv(it: Mapping[str, Any]) -> bool:
    return any(it["kv"].values()) or bool(it["static_prefixes"])


def _kv(replicas: Iterable[Mapping[str, Any]]) -> list[Sequence[str]]:
    """Sources of prompts' KV since each replica started."""
    head = (
        *("NAME", "PINNED", "PROMPT TOKENS", "POOL", "PEERS", "STORE", "SYNC"),
        *("PEER FAILURES", "STORE FAILURES"),
    )
    return [head, *map(_kv_of, filter(_has_kv, replicas))]


def _kv_of(it: Mapping[str, Any]) -> Sequence[str]:
    kv = it["kv"]
    return (
        it["name"],
        str(sum(prefix["tokens"] for prefix in it["static_prefixes"])),
        str(kv["prompt_tokens"]),
        _percent(kv["pool_tokens"], kv["prompt_tokens"]),
        _percent(kv["peer_tokens"], kv["prompt_tokens"]),
        _percent(kv["store_tokens"], kv["prompt_tokens"]),
        f"{(kv['sync_bytes'] + kv['peer_bytes']) / 1e6:.1f} MB",
        str(kv["peer_failures"]),
        str(kv["store_failures"]),
    )


def _moves(rows: Iterable[Mapping[str, Any]]) -> list[Sequence[str]]:
    """Sessions that continued on another replica, newest first."""
    head = ("FROM", "TO", "AGO", "PAUSE", "WHY")
    return [head, *map(_move, rows)]


def _move(it: Mapping[str, Any]) -> Sequence[str]:
    return it["left"], it["replica"], _duration(it["age_s"]), _ms(it["pause_ms"]), it["reason"]


def _tokenizers(rows: Iterable[Mapping[str, str]]) -> list[Sequence[str]]:
    """The package that tokenizes each model's texts at each service, the processes that help when
    its threads are busy, and why that package."""
    keys = ("service", "model", "backend", "processes", "reason")
    head = ("NAME", "MODEL", "BACKEND", "PROCESSES", "WHY")
    return [head, *(tuple(row[key] for key in keys) for row in rows)]


def _provisional(rows: Iterable[Mapping[str, Any]]) -> list[Sequence[str]]:
    """Since each edge started: chats that take provisional text, the share that was drafted for
    only for this, the share of shown tokens that stayed, and how much sooner a final token's text
    was shown, on average over all."""
    head = ("NAME", "MODEL", "CHATS", "DRAFTED FOR", "STAYED", "SOONER")
    return [head, *map(_provisional_of, rows)]


def _provisional_of(it: Mapping[str, Any]) -> Sequence[str]:
    drafted = it["on"] + it["trial"]
    shown = it["stayed_tokens"] + it["erased_tokens"]
    return (
        it["service"],
        it["model"],
        f"{drafted + it['off']:.0f}",
        _percent(drafted, drafted + it["off"]),
        _percent(it["stayed_tokens"], shown),
        f"{it['sooner_s'] * 1000 / it['tokens']:.1f} ms" if it["tokens"] else _NONE,
    )


def _state(it: Mapping[str, Any]) -> str:
    told = [it["state"]]
    if it["overload_level"]:
        told.append(f"overload {it['overload_level']}")
    if it["quarantines"]:
        told.append(f"quarantined {it['quarantines']}x")
    return ", ".join(told)


def _is_inconsistent(replica: Mapping[str, Any]) -> bool:
    return bool(replica["inconsistent"])


def _warning(replica: Mapping[str, Any]) -> str:
    return (
        f"WARNING: {replica['name']} opens sessions as another model than it reports: it gets "
        "trials only; restart it, or ask what answers at its address"
    )


def _ms(value: float) -> str:
    return f"{value:.0f} ms"


def _percent(part: float, whole: float) -> str:
    return f"{part / whole:.0%}" if whole else _NONE


def _duration(seconds: float) -> str:
    """`12s`, `34m`, `5h`, `6d`."""
    for unit_s, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= unit_s:
            return f"{seconds // unit_s:.0f}{unit}"
    return f"{seconds:.0f}s"
