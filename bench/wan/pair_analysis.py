"""The figures of a run with a slow target: paces by distance, break-even, first text, acceptance
(pure)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from bench.harness import TOO_FEW, Cell, Figure, Run, median, quantile, show
from bench.wan.measure import Measured
from bench.wan.plan import OURS, PLAIN, REGION_DRAFTER, REGION_SUFFIX, Scheme
from bench.wan.results import Results, crossing
from bench.wan.samples import Sample


def unequal_replies(results: Results) -> list[str]:
    """One line for every reply whose ids are not those of plain streaming to the same prompt, at
    whatever distance that was asked first."""
    truth: dict[tuple[int, int, float], tuple[int, ...]] = {}
    for batch in results.batches(PLAIN):
        for asked, sample in zip(batch.asked, batch.samples, strict=True):
            truth.setdefault((*asked, batch.cell.temperature), sample.ids)
    found = []
    for scheme in results.schemes():
        for batch in results.batches(scheme):
            for asked, sample in zip(batch.asked, batch.samples, strict=True):
                if truth.get((*asked, batch.cell.temperature)) != sample.ids:
                    found.append(
                        f"{scheme.name}, RTT {batch.cell.rtt_ms:g} ms, round {asked[0]}, "
                        f"prompt {asked[1]}"
                    )
    return found


def pace_quartiles(
    results: Results, scheme: Scheme, rtt_ms: float
) -> tuple[float, float, float] | None:
    """Median and quartiles over chats of the pace over plain streaming's; None without chats."""
    ratios = results.pace_ratios(scheme, results.alone(rtt_ms))
    if not ratios:
        return None
    return median(ratios), quantile(ratios, 0.25), quantile(ratios, 0.75)


def break_even_ms(results: Results, scheme: Scheme, level: float = 1.0) -> float | None:
    """Up to which RTT the median pace is at least `level` times plain streaming's; None where the
    scheme was measured at fewer than two."""
    found = [(r, q[0]) for r in results.rtts_ms() if (q := pace_quartiles(results, scheme, r))]
    if len(found) < 2:
        return None
    rtts_ms, paces = zip(*found, strict=True)
    return crossing(rtts_ms, paces, level)


def acceptance(samples: Sequence[Sample]) -> float | None:
    """Share of the edge's drafts that were right, of those that were compared with a final token
    and followed right ones; None without any."""
    checked = sum(sample.edge.checked_tokens for sample in samples)
    return sum(sample.edge.right_tokens for sample in samples) / checked if checked else None


def uploading_share(samples: Sequence[Sample]) -> float | None:
    """Share of commits while drafts were sent; None without commits."""
    with_ = sum(sample.edge.commits_with_uploads for sample in samples)
    all_ = with_ + sum(sample.edge.commits_without_uploads for sample in samples)
    return with_ / all_ if all_ else None


def add_pair_tables(run: Run, results: Results) -> None:
    """Pace first: the README may show that alone."""
    _pace_table(run, results)
    _first_text_table(run, results)
    _draft_table(run, results)


def _pace_table(run: Run, results: Results) -> None:
    rtts_ms = results.rtts_ms()
    table = run.table(
        "Pace of committed tokens as a multiple of plain streaming's, slow target, by distance to "
        "the region",
        "scheme",
        "chats by RTT",
        *(f"RTT {rtt_ms:g} ms" for rtt_ms in rtts_ms),
        "at least 1.00 up to an RTT of, ms",
    )
    table.note("Medians over chats, in brackets the quartiles.")
    for scheme in results.schemes():
        if scheme == PLAIN:
            continue
        counts = [len(results.pace_ratios(scheme, results.alone(r))) for r in rtts_ms]
        cells = [_quartiles(pace_quartiles(results, scheme, r)) for r in rtts_ms]
        until = break_even_ms(results, scheme)
        if scheme in (REGION_SUFFIX, REGION_DRAFTER) or until is None:
            reach: Cell = TOO_FEW
        else:
            reach = f"{until:.0f}" if until < rtts_ms[-1] else f"{until:.0f} or more"
        table.add(scheme.name, ", ".join(map(str, counts)), *cells, reach)


def _quartiles(found: tuple[float, float, float] | None) -> Cell:
    if found is None:
        return TOO_FEW
    middle, low, high = found
    return f"{show(middle)} ({show(low)} to {show(high)})"


def _first_text_table(run: Run, results: Results) -> None:
    table = run.table(
        "Time to the first text on screen and to the first committed token, slow target, ms",
        "RTT, ms",
        "chats",
        "plain streaming",
        "(f), committed",
        "(f), on screen",
        "first word shown before its commit",
        "of those: right",
    )
    for rtt_ms in results.rtts_ms():
        where = results.alone(rtt_ms)
        ours, plain = results.samples(OURS, where), results.samples(PLAIN, where)
        if not ours or not plain:
            continue
        words = [sample.word for sample in ours if sample.word is not None]
        early = [word for word in words if word.is_early]
        right = sum(word.is_right for word in early)
        table.add(
            f"{rtt_ms:g}",
            len(ours),
            table.median([sample.committed_ms for sample in plain]),
            table.median([sample.committed_ms for sample in ours]),
            table.median([sample.visible_ms for sample in ours]),
            f"{len(early)} of {len(words)}",
            f"{right} of {len(early)}",
        )


def _draft_table(run: Run, results: Results) -> None:
    table = run.table(
        "Drafts of the edge, slow target, all distances together",
        "scheme",
        "chats",
        "right, of those decided",
        "sent, per final token",
        "accepted by the region, per final token",
        "tokens per commit",
        "commits with drafts sent",
        "ms per draft",
    )
    for scheme in results.schemes():
        samples = results.samples(scheme)
        tokens = sum(len(sample.ids) for sample in samples)
        commits = sum(len(sample.commits) for sample in samples)
        if not tokens or not commits:
            continue
        drafts_ms = [sample.edge.draft_ms for sample in samples if sample.edge.draft_ms]
        table.add(
            scheme.name,
            len(samples),
            _or_dash(acceptance(samples)),
            sum(sample.edge.sent_tokens for sample in samples) / tokens,
            sum(sample.num_accepted for sample in samples) / tokens,
            tokens / commits,
            _or_dash(uploading_share(samples)),
            median(drafts_ms) if drafts_ms else TOO_FEW,
        )


def _or_dash(value: float | None) -> Cell:
    return TOO_FEW if value is None else value


def keep_pair(
    run: Run, results: Results, tables: Mapping[str, Mapping[str, object]], measured: Measured
) -> None:
    """For the record: how all was set up, and the chats one by one."""
    for name, table in tables.items():
        run.setting(name, **{key: value for key, value in table.items() if key != "source"})
    run.setting("all", rounds=measured.num_rounds, drafter=measured.drafter)
    kept: tuple[tuple[str, Callable[[Sample], float | None]], ...] = (
        ("first commit", lambda sample: sample.committed_ms),
        ("first text", lambda sample: sample.visible_ms),
        ("per token", lambda sample: sample.token_ms),
    )
    for scheme in results.schemes():
        for rtt_ms in results.rtts_ms():
            samples = results.samples(scheme, results.alone(rtt_ms))
            for told, of in kept:
                values = [value for sample in samples if (value := of(sample)) is not None]
                if values:
                    run.samples(f"{scheme.name}, RTT {rtt_ms:g} ms: {told}", values, unit="ms")


def pair_figures(results: Results, measured: Measured, wrong: Sequence[str]) -> dict[str, Figure]:
    """Everything a run is judged by."""
    num = sum(len(results.samples(scheme)) for scheme in results.schemes())
    return {
        "pace_over_plain": {
            scheme.name: dict(_paces(results, scheme))
            for scheme in results.schemes()
            if scheme != PLAIN
        },
        "break_even_ms": {
            scheme.name: None if (at := break_even_ms(results, scheme)) is None else round(at)
            for scheme in results.schemes()
            if scheme not in (PLAIN, REGION_SUFFIX, REGION_DRAFTER)
        },
        "acceptance": {
            scheme.name: None
            if (rate := acceptance(results.samples(scheme))) is None
            else round(rate, 3)
            for scheme in results.schemes()
        },
        "exact": f"{num - len(wrong)} of {num}",
        "rounds": measured.num_rounds,
        "seconds": round(measured.seconds),
    }


def _paces(results: Results, scheme: Scheme) -> Iterator[tuple[str, Figure]]:
    for rtt_ms in results.rtts_ms():
        found = pace_quartiles(results, scheme, rtt_ms)
        if found is not None:
            yield f"{rtt_ms:g}", [round(value, 3) for value in found]
