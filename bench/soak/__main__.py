"""Runs one of the two and reports."""

from __future__ import annotations

import argparse
import asyncio
import sys

import bench.soak
from bench.harness import Run, parser, quantile, start
from bench.soak.live import Soak, SoakTotals, make_chats, num_sessions, num_wrong
from bench.soak.streams import (
    MAX_GROWTH_MB,
    WARM_UP_S,
    WARM_UP_SESSIONS,
    Streams,
    growth_mb,
)
from bench.soak.virtual import VirtualReplica
from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import load_vocabulary


def main() -> int:
    flags = parser("soak", bench.soak.__doc__ or "")
    flags.add_argument("--minutes", type=float, default=10.0, help="of real time")
    flags.add_argument("--virtual", action="store_true", help="an hour of virtual time instead")
    flags.add_argument("--streams", type=int, default=0, help="so many at once instead")
    flags.add_argument("--seed", type=int, default=1)
    flags.add_argument("--threads", type=int, default=1, help="threads of the engine")
    arguments = flags.parse_args()
    flags_of = {"soak_virtual": arguments.virtual, "soak_streams": arguments.streams}
    name = next((name for name, given in flags_of.items() if given), "soak")
    run = start(name, arguments)
    run.command = run.command.replace(f"bench.{name}", "bench.soak")
    ok = {"soak": _live, "soak_virtual": _virtual, "soak_streams": _streams}[name](run, arguments)
    run.figures["ok"] = ok
    run.finish()
    return int(not ok)


def _virtual(run: Run, arguments: argparse.Namespace) -> bool:
    hours = 0.05 if run.quick else 1.0
    replica = VirtualReplica(arguments.seed, hours * 3600)
    totals = replica.run()
    ends = run.table("Sessions by how they ended", "end", "sessions")
    for end, count in sorted(totals.ends.items()):
        ends.add(end, count)
    waits = run.table(
        "Time in the queue by priority, ms of virtual time", "priority", "p50", "p99", "longest"
    )
    for name, times in sorted(totals.queue_ms.items()):
        waits.add(name, quantile(times, 0.5), waits.quantile(times, 0.99), max(times))
        run.samples(f"{name}: time in the queue", times, unit="ms")
    run.figures |= {
        "virtual_hours": round(replica.now / 3600, 3),
        "sessions": sum(totals.ends.values()),
        "ticks": totals.num_ticks,
        "wrong_texts": totals.wrong,
        "copied_blocks": totals.num_copies,
        "hit_rate": round(totals.cached_tokens / max(1, totals.prompt_tokens), 3),
        "longest_queue_s": round(max(max(t) for t in totals.queue_ms.values()) / 1e3, 1),
    }
    return totals.wrong == 0 and not any(end.startswith("failed") for end in totals.ends)


def _live(run: Run, arguments: argparse.Namespace) -> bool:
    minutes = min(1.0, arguments.minutes) if run.quick else arguments.minutes
    vocabulary = load_vocabulary(DEFAULT_MODEL, ModelStore(default_root()))
    chats = make_chats(vocabulary, arguments.seed)
    soak = Soak(vocabulary, chats, arguments.seed)
    totals = asyncio.run(soak.run(minutes * 60, arguments.threads))
    wrong = num_wrong(vocabulary, chats, totals, arguments.threads)
    _tables(run, totals)
    left = _left(totals)
    starved = totals.ends["starved"]
    run.figures |= {
        "minutes": minutes,
        "sessions": sum(totals.ends.values()),
        "wrong_texts": wrong,
        "starved": starved,
        "wrong_errors": len(totals.wrong_errors),
        "longest_wait_s": round(max(totals.longest_s.values(), default=0.0), 1),
        **left,
        "hit_rate": round(totals.cached_tokens / max(1, totals.prompt_tokens), 3),
        "kv_events": totals.num_kv_events,
    }
    for told in sorted(set(totals.wrong_errors)):
        print(f"bad input ended with {told}", file=sys.stderr)
    return not (wrong or starved or totals.wrong_errors or any(left.values()))


def _streams(run: Run, arguments: argparse.Namespace) -> bool:
    minutes = min(0.5, arguments.minutes) if run.quick else arguments.minutes
    warm_up_sessions = 0 if run.quick else WARM_UP_SESSIONS
    streams = Streams(arguments.streams, arguments.seed)
    totals = asyncio.run(streams.run(60 * minutes, WARM_UP_S, warm_up_sessions))
    grown = {name: growth_mb(rss, totals.num_over) for name, rss in totals.rss_mib.items()}
    memory = run.table(
        "Resident memory of each process after the warm-up, and its growth: at most "
        f"{MAX_GROWTH_MB:g} MB per 1,000 sessions",
        "process",
        "lowest, MiB",
        "highest, MiB",
        "growth, MB per 1,000 sessions",
        "verdict",
    )
    for name, rss in totals.rss_mib.items():
        verdict = "flat" if grown[name] <= MAX_GROWTH_MB else "grows"
        memory.add(name, min(rss), max(rss), grown[name], verdict)
    ends = run.table("Streams by how they ended, warm-up included", "end", "streams")
    for end, count in sorted(totals.ends.items()):
        ends.add(end, count)
    for name, rss in totals.rss_mib.items():
        run.samples(f"memory of the {name}, a sample a second", rss, unit="MiB")
    run.samples("sessions that were over at those moments", totals.num_over, unit="sessions")
    errors = sum(count for end, count in totals.ends.items() if end != "finished")
    run.figures |= {
        "minutes": minutes,
        "warm_up_s": round(totals.warm_up_s),
        "streams_least": min(totals.num_open),
        "sessions": totals.ends["finished"],
        "sessions_after_warm_up": totals.num_over[-1] - totals.num_over[0],
        "tokens_per_s": round(totals.num_tokens / totals.seconds),
        "ttft_ms_p99": round(quantile(totals.ttft_ms, 0.99)),
        "errors": errors,
        "wrong_replies": totals.wrong,
        "growth_mb_per_1000_sessions": {name: round(mb, 3) for name, mb in grown.items()},
    }
    if run.quick:
        print("memory is not judged in a quick run: nothing has warmed up", file=sys.stderr)
    flat = run.quick or all(mb <= MAX_GROWTH_MB for mb in grown.values())
    return flat and not errors and not totals.wrong


def _tables(run: Run, totals: SoakTotals) -> None:
    ends = run.table("Sessions by how they ended", "end", "sessions")
    for end, count in sorted(totals.ends.items()):
        ends.add(end, count)
    waits = run.table("Longest wait for the next token by priority, s", "priority", "longest wait")
    for name, longest_s in sorted(totals.longest_s.items()):
        waits.add(name, longest_s)


def _left(totals: SoakTotals) -> dict[str, int]:
    """What the replica should have given back; -1 where it did not say."""
    load, held = totals.load, totals.left
    return {
        "kv_blocks_lost": -1 if load is None else load.kv_blocks_total - load.kv_blocks_free,
        "sessions_left": -1 if load is None else num_sessions(load),
        "tasks_left": -1 if held is None else held.tasks,
        "threads_left": -1 if held is None else held.threads,
        "files_left": -1 if held is None else held.files,
    }


if __name__ == "__main__":
    sys.exit(main())
