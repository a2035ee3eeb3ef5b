"""Measures, records, serves again, and reports."""

from __future__ import annotations

import sys
from itertools import product

import bench.policy
from bench.harness.figures import Cell, Run, Table, median, parser, quantile, start
from bench.policy import recorded
from bench.policy.recorded import Chat
from bench.policy.virtual import Served, VirtualReplica
from outrider.engines.config import EngineConfig
from outrider.engines.factory import create_engine
from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import load_vocabulary
from outrider.speculation.shipped import shipped_prior

TEMPERATURES = (0.0, 0.8)
SESSIONS = (1, 2, 4, 8, 16)
AT_ONCE = (1, 4, 8, 16)
SHARES = (0.5, 0.8, 0.95)
"""Of what the replica serves a second with drafts off and all places taken."""


def main() -> int:
    flags = parser("policy", bench.policy.__doc__ or "")
    flags.add_argument("--threads", type=int, default=1, help="threads of the engine")
    arguments = flags.parse_args()
    run = start("policy", arguments)
    vocabulary = load_vocabulary(DEFAULT_MODEL, ModelStore(default_root()))
    config = EngineConfig(threads=arguments.threads, max_fixed_rows=64, prepare_first=True)
    engine = create_engine(config)
    try:
        durations = recorded.durations(engine)
        count = 48 if run.quick else 160
        chats = {
            each: recorded.chats(engine, vocabulary, "chat", count, each) for each in TEMPERATURES
        }
        documents = recorded.chats(engine, vocabulary, "document", max(AT_ONCE), 0.0)
    finally:
        engine.close()
    share, num_calls = recorded.SHARE, recorded.NUM_CALLS
    table = run.table(
        f"Milliseconds of a call by rows: what {1 - share:.0%} of {num_calls} calls exceeded",
        *map(str, durations),
    )
    table.add(*(quantile(times, share) for times in durations.values()))
    for size, times in durations.items():
        run.samples(f"a call of {size} rows", times, unit="ms")
    quick_calls = {size: quantile(times, share) for size, times in durations.items()}
    replica = VirtualReplica(engine.info, quick_calls, shipped_prior(vocabulary.digest))
    run.figures["wrong_texts"] = (
        _closed(run, replica, chats)
        + _arriving(run, replica, chats[0.0])
        + _at_once(run, replica, documents)
    )
    run.finish()
    return int(bool(run.figures["wrong_texts"]))


def _closed(run: Run, replica: VirtualReplica, chats: dict[float, list[Chat]]) -> int:
    """Each chat is followed by the next."""
    title = "So many chats at all times"
    table = run.table(title, "temperature", "sessions", *_COLUMNS, "on / off")
    ratios: dict[str, dict[str, float]] = {}
    wrong = 0
    for temperature, sessions in product(TEMPERATURES, SESSIONS):
        of_kind = chats[temperature]
        off, on = (replica.serve(of_kind, drafts=d, sessions=sessions) for d in (False, True))
        ratio = round(_speed(on) / _speed(off), 3)
        ratios.setdefault(f"{temperature:g}", {})[str(sessions)] = ratio
        table.add(temperature, sessions, "off", *_cells(table, off), 1.0)
        table.add(temperature, sessions, "on", *_cells(table, on), ratio)
        wrong += off.wrong + on.wrong
    run.figures["drafts_on_over_off"] = ratios
    return wrong


def _arriving(run: Run, replica: VirtualReplica, chats: list[Chat]) -> int:
    """Greedy chats come by themselves."""
    full = replica.serve(chats, drafts=False, sessions=SESSIONS[-1])
    most, wrong = len(chats) / full.seconds, full.wrong
    table = run.table("Chats arriving as a Poisson process", "load", *_COLUMNS)
    for share in SHARES:
        for drafts in (False, True):
            served = replica.serve(chats, drafts=drafts, rate=share * most)
            table.add(f"{share:.0%}", "on" if drafts else "off", *_cells(table, served))
            wrong += served.wrong
    return wrong


def _at_once(run: Run, replica: VirtualReplica, documents: list[Chat]) -> int:
    """Greedy replies to documents that come in the same moment."""
    table = run.table("So many documents at once, and no others", "documents", *_COLUMNS)
    wrong = 0
    for count in AT_ONCE:
        for drafts in (False, True):
            served = replica.serve(documents[:count], drafts=drafts, sessions=count)
            table.add(count, "on" if drafts else "off", *_cells(table, served))
            wrong += served.wrong
    return wrong


_COLUMNS = ("drafts", "tokens/s", "call ms", "TTFT p50", "TTFT p95", "ITL p50", "ITL p99")


def _speed(served: Served) -> float:
    return served.num_tokens / served.seconds


def _cells(table: Table, served: Served) -> tuple[Cell, ...]:
    ttft, gaps = served.ttft_ms, served.gaps_ms
    return (
        _speed(served),
        median(served.call_ms),
        *(table.quantile(ttft, share) for share in (0.5, 0.95)),
        *(table.quantile(gaps, share) for share in (0.5, 0.99)),
    )


if __name__ == "__main__":
    sys.exit(main())
