"""The tables of a run, and what its record keeps beside them: samples and settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from bench.harness import TOO_FEW, Cell, Run, show
from bench.wan.first_words import first_word_tables, how, provisional_table
from bench.wan.headline import headline
from bench.wan.measure import Measured
from bench.wan.plan import (
    CLIENT_RTT_MS,
    NO_UPLOAD,
    OURS,
    PLAIN,
    REGION_DRAFTER,
    REGION_SUFFIX,
    Scheme,
    Size,
)
from bench.wan.results import Results, Selection
from bench.wan.samples import Sample

_ALONE = 1
_OVER = (PLAIN, REGION_SUFFIX, REGION_DRAFTER)
"""What our capacity is held against."""


def add_tables(run: Run, results: Results, measured: Measured, exact: Mapping[str, str]) -> None:
    """All of them. The README shows the first."""
    greedy, *sampled = results.temperatures()
    headline(run, results, greedy)
    first_word_tables(run, results, [greedy])
    pace_tables(run, results)
    for temperature in sampled:
        headline(run, results, temperature)
    first_word_tables(run, results, sampled)
    provisional_table(run, results)
    _several_chats(run, results)
    _capacity(run, results)
    _costs(run, results, exact)
    _placements(run, measured)
    _relay(run, measured)


def pace_tables(run: Run, results: Results) -> None:
    """Final tokens against plain streaming, by RTT."""
    for sessions, temperature in results.loads():
        where = {r: Selection(r, sessions, temperature) for r in results.rtts_ms()}
        rtts_ms = [rtt_ms for rtt_ms in where if results.batches(PLAIN, where[rtt_ms])]
        alone = sessions == _ALONE
        chats = "one chat at a time" if alone else f"{sessions} chats at once"
        title = (
            "Pace of committed tokens as a multiple of plain streaming's, by distance to the "
            f"region: {chats}, {how(temperature)}"
        )
        counted = "chats" if alone else "rounds"
        columns = [f"RTT {rtt_ms:g} ms" for rtt_ms in rtts_ms]
        table = run.table(title, "scheme", f"{counted} by RTT", *columns)
        for scheme in results.schemes():
            ratios = [results.pace_ratios(scheme, where[rtt_ms]) for rtt_ms in rtts_ms]
            if any(ratios) and scheme != PLAIN:
                table.add(scheme.name, _counts(ratios), *map(table.mean_ratio, ratios))


def _several_chats(run: Run, results: Results) -> None:
    """What a pace with many chats is made of, all RTTs and temperatures together."""
    if NO_UPLOAD not in results.schemes():
        return
    steps = ((REGION_SUFFIX, PLAIN), (NO_UPLOAD, REGION_SUFFIX), (OURS, NO_UPLOAD), (OURS, PLAIN))
    title = (
        "Pace of committed tokens with several chats at once: one scheme as a multiple of another, "
        "round by round"
    )
    names = (f"{scheme.name[:3]} over {over.name[:3]}" for scheme, over in steps)
    table = run.table(title, "chats at once", "rounds", *names)
    for sessions in results.session_counts():
        where = Selection(sessions=sessions)
        if results.batches(NO_UPLOAD, where) and sessions != _ALONE:
            ratios = [results.pace_ratios(scheme, where, over) for scheme, over in steps]
            table.add(sessions, _counts(ratios), *map(table.mean_ratio, ratios))


def _capacity(run: Run, results: Results) -> None:
    """What edges that draft spare the region."""
    title = (
        "Committed tokens per second of the region's CPU time: Outrider as a multiple of the "
        "others, on the same chats"
    )
    table = run.table(title, "chats at once", *(f"over {it.name[:3]}" for it in _OVER))
    for sessions in results.session_counts():
        table.add(sessions, *(ratio or TOO_FEW for ratio in _capacities(results, sessions)))


def _capacities(results: Results, sessions: int) -> list[float]:
    where = Selection(sessions=sessions)
    return [results.capacity_ratio(OURS, over, where) for over in _OVER]


def _costs(run: Run, results: Results, exact: Mapping[str, str]) -> None:
    """What region and edge compute, and what the long link carries."""
    session_counts = results.session_counts()
    chats = [f"{sessions} {'chat' if sessions == 1 else 'chats'}" for sessions in session_counts]
    table = run.table(
        "CPU time per committed token, ms (region + edge), and bytes per committed token on the "
        "link between client's side and region",
        *("scheme", *chats, "bytes up", "bytes down", "wire bytes up", "wire bytes down"),
        "exact replies",
    )
    for scheme in results.schemes():
        sent = results.bytes_per_token(scheme)
        sizes: list[Cell] = [sent[way] for way in ("up", "down", "up wire", "down wire")]
        spent = (_cpu(results, scheme, sessions) for sessions in session_counts)
        table.add(scheme.name, *spent, *sizes, exact[scheme.name])


def _cpu(results: Results, scheme: Scheme, sessions: int) -> str:
    region_ms, edge_ms = results.cpu_ms_per_token(scheme, Selection(sessions=sessions))
    return f"{show(region_ms)} + {show(edge_ms)}" if region_ms else TOO_FEW


def _placements(run: Run, measured: Measured) -> None:
    table = run.table(
        "Cores and model threads of the processes of this run",
        *("process", "cores", "threads that compute a model"),
    )
    for one in measured.placements:
        table.add(one.process, ", ".join(map(str, one.cores)), one.threads or TOO_FEW)


def _relay(run: Run, measured: Measured) -> None:
    """Whether the relay is the bottleneck."""
    late = [measured.relay.lateness_ms(share) for share in (0.5, 0.95, 0.99)]
    table = run.table(
        "What the emulated network added by itself",
        *("packets held", "added delay p50, ms", "p95", "p99", "share of a core"),
    )
    share = measured.relay_cpu_s / measured.seconds if measured.seconds else 0.0
    table.add(measured.relay.packets, *late, share)


def _counts(ratios: Sequence[Sequence[float]]) -> str:
    """How many each column has; once, if all have the same."""
    counts = [len(found) for found in ratios]
    return str(counts[0]) if len(set(counts)) == 1 else ", ".join(map(str, counts))


_TIMES: Mapping[str, Callable[[Sample], float | None]] = {
    "first text": lambda sample: sample.visible_ms,
    "first word shown": lambda sample: sample.word.shown_ms if sample.word else None,
    "first word that stays": lambda sample: sample.word.staying_ms if sample.word else None,
    "first word final": lambda sample: sample.word.final_ms if sample.word else None,
    "first final token": lambda sample: sample.committed_ms,
    "last final token": lambda sample: sample.whole_ms,
}
_COUNTS: Mapping[str, Callable[[Sample], float]] = {
    "first word shown early": lambda sample: float((sample.word and sample.word.is_early) or 0),
    "first word shown was right": lambda sample: float((sample.word and sample.word.is_right) or 0),
    "final tokens": lambda sample: float(len(sample.ids)),
    "final characters": lambda sample: float(sample.num_chars),
    "characters shown early": lambda sample: float(sample.early_chars),
    "characters taken back": lambda sample: float(sample.erased_chars),
}


def keep_samples(run: Run, results: Results) -> None:
    """Chat by chat, in the same order of prompts for all schemes under a condition. Chats without a
    word are left out of the times of words."""
    for scheme in results.schemes():
        for rtt_ms in results.rtts_ms():
            for sessions, temperature in results.loads():
                where = Selection(rtt_ms, sessions, temperature)
                batches = sorted(results.batches(scheme, where), key=lambda b: (b.turn, b.first))
                samples = [sample for batch in batches for sample in batch.samples]
                if not samples:
                    continue
                cell = f"{scheme.name}, RTT {rtt_ms:g} ms, {sessions} at once, {how(temperature)}"
                for name, time_of in _TIMES.items():
                    times_ms = [ms for sample in samples if (ms := time_of(sample)) is not None]
                    run.samples(f"{cell}: {name}", times_ms, unit="ms")
                for name, count_of in _COUNTS.items():
                    run.samples(f"{cell}: {name}", list(map(count_of, samples)), unit="")
                for name in ("region_s", "edge_s"):
                    spent = [getattr(batch.spent, name) for batch in batches]
                    run.samples(f"{cell}: CPU of {name.removesuffix('_s')}", spent, unit="s")


def keep_settings(run: Run, size: Size, measured: Measured) -> None:
    """What was asked, over which links, on which cores, of whom."""
    asked = {prompt.id for turn in range(measured.num_rounds) for prompt in size.prompts(turn)}
    run.setting(
        "all",
        prompts="bench/data/test",
        different_prompts=len(asked),
        max_tokens=size.max_tokens,
        client_rtt_ms=CLIENT_RTT_MS,
        drafter=measured.drafter,
        rounds=measured.num_rounds,
        seconds=round(measured.seconds),
    )
    for place in measured.placements:
        run.setting(place.process, cores=list(place.cores), model_threads=place.threads)
    for scheme in size.schemes:
        run.setting(
            scheme.name,
            gateway=scheme.gateway,
            speculation=scheme.speculation,
            provisional=scheme.provisional,
            links_rtt_ms={f"RTT {rtt_ms:g}": scheme.rtts_ms(rtt_ms) for rtt_ms in size.rtts_ms},
        )
