"""The tables of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bench.harness.figures import Cell, Run, mean_ratio, quantile, show
from bench.wan.measure import Measured
from bench.wan.plan import OURS, PLAIN, QUIET, REGION_SUFFIX, ROUNDS, SCHEMES, STREAM
from bench.wan.report.capacity import capacities
from bench.wan.report.figures import Model
from bench.wan.report.results import Results, Where

_ALONE = 1
_MEAN = "geometric mean over {} (its 95 % interval)"


def add_tables(
    run: Run, results: Results, measured: Measured, model: Model, exact: Mapping[str, str]
) -> None:
    """All of them, the one of most interest first."""
    first_tokens(run, results)
    paces(run, results)
    crowds(run, results)
    capacity(run, results)
    costs(run, results, exact)
    provisional(run, results)
    break_even(run, results, model)
    relay(run, measured)


def first_tokens(run: Run, results: Results) -> None:
    """What the reader waits for."""
    columns = ("plain p50", "plain p95", "visible p50", "visible p95", "committed p50")
    more = ("committed p95", "stable p50", "stable p95", "plain over visible")
    title = "Time to first token by RTT, plain streaming and Outrider, one chat at a time, ms"
    table = run.table(title, "RTT, ms", *columns, *more)
    for rtt_ms in results.rtts_ms():
        where = Where(rtt_ms, _ALONE)
        plain = [sample.committed_ms for sample in results.samples(PLAIN, where)]
        ours = results.samples(OURS, where)
        kinds = (
            plain,
            [sample.visible_ms for sample in ours],
            [sample.committed_ms for sample in ours],
            [sample.stable_ms for sample in ours],
        )
        cells = [quantile(times, share) for times in kinds for share in (0.5, 0.95)]
        table.add(int(rtt_ms), *cells, cells[0] / cells[2])


def paces(run: Run, results: Results) -> None:
    """Final tokens against plain streaming, by RTT."""
    for sessions, temperature in results.loads():
        where = {r: Where(r, sessions, temperature) for r in results.rtts_ms()}
        rtts_ms = [rtt_ms for rtt_ms in where if results.batches(PLAIN, where[rtt_ms])]
        alone = sessions == _ALONE
        chats = "one chat at a time" if alone else f"{sessions} chats at once"
        mean = _MEAN.format("chats" if alone else "rounds")
        how = "greedy" if temperature == 0 else f"T={temperature:g}"
        title = f"Pace of final tokens over plain streaming, {chats}, {how}, {mean}"
        table = run.table(title, "scheme", *(f"RTT {rtt_ms:g} ms" for rtt_ms in rtts_ms))
        for scheme in SCHEMES:
            ratios = [results.pace_ratios(scheme, where[rtt_ms]) for rtt_ms in rtts_ms]
            if any(ratios):
                table.add(scheme.name, *map(_ranged, ratios))


def crowds(run: Run, results: Results) -> None:
    """What a pace with many chats is made of, all RTTs and temperatures together."""
    steps = ((REGION_SUFFIX, PLAIN), (QUIET, REGION_SUFFIX), (OURS, QUIET), (OURS, PLAIN))
    title = f"Pace of final tokens, one scheme over another, {_MEAN.format('rounds')}"
    names = (f"{scheme.name[:3]} over {over.name[:3]}" for scheme, over in steps)
    table = run.table(title, "chats at once", *names)
    for sessions in results.crowds():
        where = Where(sessions=sessions)
        if results.batches(QUIET, where):
            ratios = (results.pace_ratios(scheme, where, over) for scheme, over in steps)
            table.add(sessions, *map(_ranged, ratios))


def capacity(run: Run, results: Results) -> None:
    """What edges that draft spare the region."""
    title = "Final tokens per core-second of the region: Outrider over the others"
    table = run.table(
        *(title, "chats at once", "over (a)", "over (b)", "over (c)", "1 + k t_d / t_s"),
        *("k, drafts per commit of (c)", "t_d of (c), ms", "t_s of (a), ms"),
    )
    for one in capacities(results):
        ratios: list[Cell] = [one.over_plain, one.over_suffix, one.over_drafter, one.predicted]
        terms: list[Cell] = [one.drafts_per_commit, one.draft_ms, one.token_ms]
        shown = [ratio or "-" for ratio in ratios]
        table.add(one.sessions, *shown, *(terms if one.over_drafter else ["-"] * len(terms)))


def costs(run: Run, results: Results, exact: Mapping[str, str]) -> None:
    """What the region spends, and what the long link carries."""
    crowds = results.crowds()
    chats = [f"{sessions} {'chat' if sessions == 1 else 'chats'}" for sessions in crowds]
    title = (
        "Final tokens per core-second of the region, and bytes of a final token on the long link"
    )
    table = run.table(
        *(title, "scheme", *chats),
        *("bytes up", "bytes down", "wire bytes up", "wire bytes down", "exact replies"),
    )
    for scheme in SCHEMES:
        sent = results.bytes_per_token(scheme)
        sizes: list[Cell] = [sent[way] for way in ("up", "down", "up wire", "down wire")]
        rates = [results.tokens_per_core_s(scheme, Where(sessions=n)) or "-" for n in crowds]
        table.add(scheme.name, *rates, *sizes, exact[scheme.name])


def provisional(run: Run, results: Results) -> None:
    """What was shown before it was final, and taken back."""
    table = run.table(
        *("Provisional text of Outrider", "RTT, ms", "temperature"),
        *("erasure", "shown early", "drafts accepted"),
    )
    for rtt_ms in results.rtts_ms():
        for temperature in results.temperatures():
            samples = results.samples(OURS, Where(rtt_ms, None, temperature))
            if not samples:
                continue
            chars = sum(sample.num_chars for sample in samples) or 1
            drafts = sum(sample.num_drafts for sample in samples) or 1
            erased, early, accepted = (
                sum(getattr(sample, name) for sample in samples)
                for name in ("erased_chars", "early_chars", "num_accepted")
            )
            cells = (erased / chars, early / chars, accepted / drafts)
            table.add(int(rtt_ms), temperature, *cells)


def break_even(run: Run, results: Results, model: Model) -> None:
    """Up to which RTT drafting far from the model pays."""
    table = run.table(
        "RTT up to which a scheme is ahead, one chat at a time, ms", "scheme", "over",
        "measured", "predicted",
    )  # fmt: skip
    for scheme, over in ((ROUNDS, PLAIN), (STREAM, PLAIN), (OURS, PLAIN), (OURS, REGION_SUFFIX)):
        predicted = model.predicted_ms.get((scheme.name, over.name))
        shown: Cell = "-" if predicted is None else predicted
        table.add(scheme.name, over.name, model.measured_ms[scheme.name, over.name], shown)


def relay(run: Run, measured: Measured) -> None:
    """Whether the relay is the bottleneck."""
    late = [measured.relay.lateness_ms(share) for share in (0.5, 0.95, 0.99)]
    table = run.table(
        "The relay itself", "packets held", "added delay p50, ms", "p95", "p99", "share of a core"
    )
    share = measured.relay_cpu_s / measured.seconds if measured.seconds else 0.0
    table.add(measured.relay.packets, *late, share)


def _ranged(ratios: Sequence[float]) -> str:
    if not ratios:
        return "-"
    mean, low, high = mean_ratio(ratios)
    if len(ratios) == 1:
        return show(mean)
    return f"{show(mean)} ({show(low)} to {show(high)})"
