"""Runs the chats and judges what they left."""

from __future__ import annotations

import asyncio
import sys

import bench.soak
from bench.harness import Run, parser, start
from bench.soak.chats import Soak, SoakTotals, make_chats, num_wrong
from bench.soak.held import MAX_GROWTH_MB, growth_mb
from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import load_vocabulary


def main() -> int:
    flags = parser("soak", bench.soak.__doc__ or "")
    flags.add_argument("--minutes", type=float, default=10.0, help="of real time")
    flags.add_argument("--seed", type=int, default=1)
    flags.add_argument("--threads", type=int, default=1, help="threads of the engine")
    arguments = flags.parse_args()
    run = start("soak", arguments)
    minutes = min(1.0, arguments.minutes) if run.quick else arguments.minutes
    vocabulary = load_vocabulary(DEFAULT_MODEL, ModelStore(default_root()))
    chats = make_chats(vocabulary, arguments.seed)
    soak = Soak(vocabulary, chats, arguments.seed)
    totals = asyncio.run(soak.run(minutes * 60, arguments.threads))
    wrong = num_wrong(vocabulary, chats, totals, arguments.threads)
    run.figures |= {"minutes": minutes, "wrong_texts": wrong}
    ok = _report(run, totals) and not wrong
    run.figures["ok"] = ok
    run.finish()
    return int(not ok)


def _report(run: Run, totals: SoakTotals) -> bool:
    """Tables and figures; whether all is as it should be, the texts aside."""
    ends = run.table("Sessions by how they ended", "end", "sessions")
    for end, count in sorted(totals.ends.items()):
        ends.add(end, count)
    waits = run.table("Longest wait for the next token by priority, s", "priority", "longest wait")
    for name, longest_s in sorted(totals.longest_s.items()):
        waits.add(name.removeprefix("PRIORITY_"), longest_s)
    grown = growth_mb(totals.rss_mib, totals.num_over)
    memory = run.table(
        "Resident memory of the replica, and its growth: at most "
        f"{MAX_GROWTH_MB:g} MB per 1,000 sessions",
        *("lowest, MiB", "highest, MiB", "growth, MB per 1,000 sessions"),
    )
    memory.add(min(totals.rss_mib), max(totals.rss_mib), grown)
    run.samples("memory of the replica, a sample a second", totals.rss_mib, unit="MiB")
    run.samples("sessions that were over at those moments", totals.num_over, unit="sessions")
    starved = totals.ends["starved"]
    run.figures |= {
        "sessions": sum(totals.ends.values()),
        "starved": starved,
        "wrong_errors": len(totals.wrong_errors),
        "longest_wait_s": round(max(totals.longest_s.values(), default=0.0), 1),
        "left": dict(totals.left),
        "growth_mb_per_1000_sessions": round(grown, 3),
    }
    for told in sorted(set(totals.wrong_errors)):
        print(f"bad input ended with {told}", file=sys.stderr)
    if run.quick:
        print("memory is not judged in a quick run: too few sessions end in it", file=sys.stderr)
    flat = run.quick or grown <= MAX_GROWTH_MB
    return flat and not (starved or totals.wrong_errors or totals.left)


if __name__ == "__main__":
    sys.exit(main())
