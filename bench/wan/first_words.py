"""When the first word is on screen, whether it is right, and what is shown early (pure).

All of it of one chat at a time. Words as `outrider.client.first_word` has them, in every scheme.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import fmean

from bench.harness import TOO_FEW, Cell, Run
from bench.wan.plan import OURS, PLAIN, Scheme
from bench.wan.results import (
    MIN_FOR_P50,
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
"""Times to the first word: whose chats, and which time of them."""


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
            table.add(int(rtt_ms), len(pairs), *cells)
        table.note(
            "Means with 95 % intervals (chats drawn anew, bootstrap); p50: "
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


def _taken_back(by_prompt: Sequence[Sequence[Sample]]) -> str:
    shown = [_sum(chats, "provisional_chars") for chats in by_prompt]
    if not sum(shown):
        return TOO_FEW
    return str(ratio([_sum(chats, "erased_chars") for chats in by_prompt], shown))


def _cell(value: float | None) -> Cell:
    return TOO_FEW if value is None else value
