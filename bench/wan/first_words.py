"""When the first word is on screen, whether it is right, and what is shown early (pure).

All of it of one chat at a time. Words as `outrider.client.first_word` has them, in every scheme.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import fmean

from bench.harness import TOO_FEW, Cell, Figure, Run, quantile
from bench.wan.plan import OURS, PLAIN, Scheme
from bench.wan.results import (
    MIN_FOR_P50,
    Estimate,
    Results,
    Selection,
    mean,
    quantile_over_chats,
    ratio,
    share,
)
from bench.wan.samples import Sample, Word

_TIMES: dict[str, tuple[Scheme, Callable[[Word], float]]] = {
    "plain_word_ms": (PLAIN, lambda word: word.staying_ms),
    "visible_word_ms": (OURS, lambda word: word.shown_ms),
    "staying_word_ms": (OURS, lambda word: word.staying_ms),
    "committed_word_ms": (OURS, lambda word: word.final_ms),
}
"""Times to the first word by their names in the figures: whose chats, and which time of them."""


def suffix(temperature: float) -> str:
    """Of the names of figures: greedy ones have none."""
    return f"_t{temperature:g}" if temperature else ""


def how(temperature: float) -> str:
    """In a table's title."""
    return f"T={temperature:g}" if temperature else "greedy"


def first_word_tables(run: Run, results: Results, temperatures: Sequence[float]) -> None:
    """Visible and staying first words side by side, by RTT, beside plain streaming's."""
    for temperature in temperatures:
        table = run.table(
            "Time from asking to the first word on screen, ms, by distance to the region: plain "
            f"streaming and Outrider, one chat at a time, {how(temperature)}",
            "RTT to the region, ms",
            "chats",
            "plain streaming",
            "p50",
            "Outrider: first word shown, right or wrong",
            "p50",
            "Outrider: first word that stays",
            "p50",
            "Outrider: first word committed",
            "p50",
            "shown: over plain",
            "stays: over plain",
        )
        for rtt_ms in results.rtts_ms():
            where = Selection(rtt_ms, 1, temperature)
            pairs = list(_pairs(results, where))
            if not pairs:
                continue
            cells: list[Cell] = []
            for name in _TIMES:
                times_ms = _times_ms(name, results, where)
                cells += [str(mean(times_ms)), _cell(quantile_over_chats(times_ms, 0.5))]
            base = [plain.staying_ms for plain, _ in pairs]
            shown = ratio([ours.shown_ms for _, ours in pairs], base)
            staying = ratio([ours.staying_ms for _, ours in pairs], base)
            table.add(int(rtt_ms), len(pairs), *cells, str(shown), str(staying))
        table.note(
            "Means, and ratios of means, with 95 % intervals (chats drawn anew, bootstrap); p50: "
            f"medians, from {MIN_FOR_P50} chats on. A word is on screen when its last letter is."
        )


def provisional_table(run: Run, results: Results) -> None:
    """What was shown before it was final, and what became of it."""
    table = run.table(
        "Text that Outrider showed before it was committed, one chat at a time: how much of it, "
        "and how much stayed",
        "RTT, ms",
        "temperature",
        "chats",
        "first word shown before its commit",
        "of those: right",
        "of provisional characters: taken back",
        "of committed characters: shown before",
        "drafts accepted",
    )
    for where, samples in _conditions(results):
        words = _words(samples)
        by_prompt = _by_prompt(results, where)
        num = len(by_prompt)
        final = [_sum(chats, "num_chars") for chats in by_prompt]
        drafts = sum(sample.num_drafts for sample in samples)
        accepted = sum(sample.num_accepted for sample in samples)
        table.add(
            "all" if where.rtt_ms is None else f"{where.rtt_ms:g}",
            where.temperature or 0.0,
            len(samples),
            str(share(fmean(word.is_early for word in words), num)) if words else TOO_FEW,
            right_cell(by_prompt),
            _taken_back(by_prompt),
            str(ratio([_sum(chats, "early_chars") for chats in by_prompt], final)),
            accepted / drafts if drafts else TOO_FEW,
        )
    table.note(
        "Shares with 95 % intervals: of chats by their number (Wilson), of characters by drawing "
        "chats anew (bootstrap). Chats at several RTTs have the same prompts and count as one."
    )


def first_word_figures(results: Results) -> dict[str, Figure]:
    """The figures by which provisional text is judged; those of sampled chats have a suffix."""
    found: dict[str, Figure] = {}
    for temperature in results.temperatures():
        end = suffix(temperature)
        wheres = [Selection(rtt_ms, 1, temperature) for rtt_ms in results.rtts_ms()]
        wheres = [where for where in wheres if list(_pairs(results, where))]
        if not wheres:
            continue
        for name in _TIMES:
            found[name + end] = {
                f"{where.rtt_ms:g}": _summary(_times_ms(name, results, where)) for where in wheres
            }
        for name, told in (
            ("staying_over_plain", lambda word: word.staying_ms),
            ("visible_over_plain", lambda word: word.shown_ms),
        ):
            found[name + end] = {
                f"{where.rtt_ms:g}": _over_plain(results, where, told).rounded() for where in wheres
            }
        everywhere = results.samples(OURS, Selection(None, 1, temperature))
        found["first_word_right" + end] = share_right(everywhere)
        found["first_word_early" + end] = _share_early(everywhere)
        found["taken_back" + end] = _share_taken_back(everywhere)
        by_rtt = {f"{where.rtt_ms:g}": results.samples(OURS, where) for where in wheres}
        for name, of in (
            ("first_word_right_by_rtt", share_right),
            ("first_word_early_by_rtt", _share_early),
            ("taken_back_by_rtt", _share_taken_back),
        ):
            found[name + end] = {rtt: of(samples) for rtt, samples in by_rtt.items()}
    return found


def _conditions(results: Results) -> Iterator[tuple[Selection, list[Sample]]]:
    """Outrider's chats alone, by temperature and RTT, and with all RTTs together."""
    for temperature in results.temperatures():
        for rtt_ms in (*results.rtts_ms(), None):
            where = Selection(rtt_ms, 1, temperature)
            samples = results.samples(OURS, where)
            if samples and any(sample.num_chars for sample in samples):
                yield where, samples


def _by_prompt(results: Results, where: Selection) -> list[list[Sample]]:
    """Outrider's chats by their prompt: those at several RTTs share it, and are no more than one
    observation."""
    found: dict[tuple[int, int], list[Sample]] = {}
    for batch in results.batches(OURS, where):
        for asked, sample in zip(batch.asked, batch.samples, strict=True):
            found.setdefault(asked, []).append(sample)
    return list(found.values())


def _sum(samples: Sequence[Sample], name: str) -> float:
    return float(sum(getattr(sample, name) for sample in samples))


def _pairs(results: Results, where: Selection) -> Iterator[tuple[Word, Word]]:
    """The first words of the same chats, plain streaming's and ours."""
    for ours, plain in results.sample_pairs(OURS, PLAIN, where):
        if ours.word is not None and plain.word is not None:
            yield plain.word, ours.word


def _times_ms(name: str, results: Results, where: Selection) -> list[float]:
    """Of the chats that both schemes had."""
    scheme, told = _TIMES[name]
    return [told(plain if scheme == PLAIN else ours) for plain, ours in _pairs(results, where)]


def _over_plain(results: Results, where: Selection, told: Callable[[Word], float]) -> Estimate:
    pairs = list(_pairs(results, where))
    return ratio([told(ours) for _, ours in pairs], [plain.staying_ms for plain, _ in pairs])


def _summary(times_ms: Sequence[float]) -> dict[str, Figure]:
    estimate, p95 = mean(times_ms), quantile_over_chats(times_ms, 0.95)
    _, low, high = estimate.rounded(1)
    return {
        "mean": round(estimate.value, 1),
        "mean_low": low,
        "mean_high": high,
        "p50": round(quantile(times_ms, 0.5), 1),
        "p95": None if p95 is None else round(p95, 1),
        "n": len(times_ms),
    }


def _words(samples: Sequence[Sample]) -> list[Word]:
    return [sample.word for sample in samples if sample.word is not None]


def share_right(samples: Sequence[Sample]) -> float:
    """Of first words that were shown before they were final; 1 where there were none."""
    early = [word.is_right for word in _words(samples) if word.is_early]
    return round(fmean(early), 4) if early else 1.0


def right_cell(by_prompt: Sequence[Sequence[Sample]]) -> str:
    """The same with its interval, from the chats of each prompt."""
    chats = [chat for chats in by_prompt for chat in chats]
    num = sum(any(word.is_early for word in _words(chats)) for chats in by_prompt)
    return str(share(share_right(chats), num)) if num else TOO_FEW


def _share_early(samples: Sequence[Sample]) -> float | None:
    words = _words(samples)
    return round(fmean(word.is_early for word in words), 4) if words else None


def _share_taken_back(samples: Sequence[Sample]) -> float:
    """Of provisional characters; 0 where there were none."""
    shown = sum(sample.provisional_chars for sample in samples)
    return round(sum(sample.erased_chars for sample in samples) / shown, 4) if shown else 0.0


def _taken_back(by_prompt: Sequence[Sequence[Sample]]) -> str:
    shown = [_sum(chats, "provisional_chars") for chats in by_prompt]
    if not sum(shown):
        return TOO_FEW
    return str(ratio([_sum(chats, "erased_chars") for chats in by_prompt], shown))


def _cell(value: float | None) -> Cell:
    return TOO_FEW if value is None else value
