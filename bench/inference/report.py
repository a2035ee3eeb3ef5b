"""Tables and figures of a run."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bench.contenders.lineup import (
    FAST,
    FAST_SPEC,
    LLAMA,
    LLAMA_BEST,
    NAMES,
    OURS,
    OURS_SPEC,
    PEER,
    PEER_SPEC,
)
from bench.contenders.work import Outcome
from bench.harness.figures import Cell as Shown
from bench.harness.figures import Run, median, quantile
from bench.inference.plan import Cell

ABSENT = "not installed"
_TTFT_COLUMNS = (("n, ", ""), ("", " p50"), ("", " p90"), ("", " p95"))
COMPARISONS = (
    ("vs_openvino_pipeline", OURS, PEER),
    ("vs_openvino_pipeline_spec", OURS_SPEC, PEER),
    ("vs_llamacpp_same", OURS_SPEC, LLAMA),
    ("vs_llamacpp_best", OURS_SPEC, LLAMA_BEST),
    ("spec_vs_openvino_prompt_lookup", OURS_SPEC, PEER_SPEC),
    ("inexact_vs_openvino_pipeline", FAST, PEER),
    ("inexact_vs_openvino_pipeline_spec", FAST_SPEC, PEER),
)

Round = tuple[int, Cell]
"""Number of the round, and what was measured in it."""


@dataclass(slots=True)
class Outcomes:
    """Everything that was measured."""

    by_round: dict[Round, Mapping[str, Outcome]] = field(default_factory=dict)
    overhead_ms: dict[str, list[float]] = field(default_factory=dict)
    """CPU time per tick outside the engine in each cell of 16 sessions, by contender."""

    def ratios(self, name: str, peer: str, wanted: Callable[[Cell], bool]) -> list[float]:
        """Tokens per second of `name` over those of `peer`, round by round."""
        return [
            by_name[name].tokens_per_s / by_name[peer].tokens_per_s
            for (_, cell), by_name in self.by_round.items()
            if wanted(cell) and name in by_name and peer in by_name
        ]

    def of(self, name: str, wanted: Callable[[Cell], bool]) -> list[Outcome]:
        """What a contender made of the wanted cells."""
        return [
            by_name[name]
            for (_, cell), by_name in self.by_round.items()
            if wanted(cell) and name in by_name
        ]

    def values(self, attribute: str) -> list[object]:
        """The different values of an attribute of the cells, in the order of measuring."""
        return list(dict.fromkeys(getattr(cell, attribute) for _, cell in self.by_round))


def report(run: Run, outcomes: Outcomes) -> None:
    """Fill the run's tables and figures."""
    for sampling in outcomes.values("sampling"):
        _ratios(run, outcomes, str(sampling))
    _speeds(run, outcomes)
    _first_tokens(run, outcomes)
    _overhead(run, outcomes)
    _exactness(run, outcomes)


def _ratios(run: Run, outcomes: Outcomes, sampling: str) -> None:
    """Ratios over all kinds of prompt; the figures have them by kind too."""
    sessions = sorted({c.concurrency for _, c in outcomes.by_round if c.sampling == sampling})
    columns = [f"{concurrency} sessions" for concurrency in sessions]
    title = f"Tokens per second over those of: {PEER}. {sampling}, median"
    table = run.table(title, "system", "n", *columns)
    for name in NAMES:
        ratios = [outcomes.ratios(name, PEER, _at(sampling, c)) for c in sessions]
        if any(ratios):
            table.add(name, _count(ratios), *(table.median(sample) for sample in ratios))
        elif name in (LLAMA, LLAMA_BEST):
            table.add(name, 0, *(ABSENT for _ in sessions))
    table.note("n: ratios of each cell, one for every round and kind of prompt.")
    suffix = "" if sampling == "greedy" else "_sampled"
    kinds = [str(kind) for kind in outcomes.values("kind")]
    for key, name, peer in COMPARISONS:
        of = {str(c): outcomes.ratios(name, peer, _at(sampling, c)) for c in sessions}
        _figures(run, key + suffix, of)
        for kind, c in itertools.product(kinds, sessions):
            of[f"{kind} {c}"] = outcomes.ratios(name, peer, _at(sampling, c, kind))
        _by_kind(run, f"{key}{suffix}_by_kind", {k: v for k, v in of.items() if " " in k})


def _at(sampling: str, concurrency: int, kind: str | None = None) -> Callable[[Cell], bool]:
    return lambda cell: (
        cell.sampling == sampling and cell.concurrency == concurrency and kind in (None, cell.kind)
    )


def _figures(run: Run, key: str, ratios: Mapping[str, Sequence[float]]) -> None:
    """Median, and lowest and highest, by concurrency; nothing for what did not take part."""
    measured = {c: sample for c, sample in ratios.items() if sample}
    if measured:
        run.figures[key] = {c: round(median(sample), 3) for c, sample in measured.items()}
        run.figures[f"{key}_range"] = {
            c: [round(min(sample), 3), round(max(sample), 3)] for c, sample in measured.items()
        }


def _by_kind(run: Run, key: str, ratios: Mapping[str, Sequence[float]]) -> None:
    measured = {name: round(median(sample), 3) for name, sample in ratios.items() if sample}
    if measured:
        run.figures[key] = measured


def _count(samples: Sequence[Sequence[float]]) -> Shown:
    """How many there are in each cell of a row."""
    counts = sorted({len(sample) for sample in samples if sample})
    return counts[0] if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def _speeds(run: Run, outcomes: Outcomes) -> None:
    sessions = sorted({cell.concurrency for _, cell in outcomes.by_round})
    columns = ("prompts", "sampling", "system", "n", *map(str, sessions))
    table = run.table("Tokens per second by sessions, medians", *columns)
    table.note("n: rounds. A speed counts every token of a round's replies, until the last ended.")
    rows = dict.fromkeys((cell.kind, cell.sampling) for _, cell in outcomes.by_round)
    for (kind, sampling), name in itertools.product(rows, NAMES):
        cells = (_at(sampling, concurrency, kind) for concurrency in sessions)
        samples = [[o.tokens_per_s for o in outcomes.of(name, wanted)] for wanted in cells]
        if not any(samples):
            continue
        table.add(kind, sampling, name, _count(samples), *(table.median(s) for s in samples))
        for count, sample in zip(sessions, samples, strict=True):
            where = f"{kind}, {sampling}, {count} sessions, {name}"
            run.samples(f"tokens/s, {where}", sample, unit="tokens/s")


def _first_tokens(run: Run, outcomes: Outcomes) -> None:
    """Time to the first token with one request at a time."""
    kinds = [kind for kind in ("chat", "document") if kind in outcomes.values("kind")]
    columns = [f"{part}{kind}{of}" for kind in kinds for part, of in _TTFT_COLUMNS]
    table = run.table("Time to first token, one at a time, greedy, ms", "system", *columns)
    for name in dict.fromkeys(itertools.chain.from_iterable(outcomes.by_round.values())):
        cells: list[Shown] = []
        for kind in kinds:
            sample = _ttft(outcomes, name, kind)
            cells += [len(sample), table.median(sample)]
            cells += [table.quantile(sample, share) for share in (0.9, 0.95)]
            run.samples(f"TTFT, {kind}, {name}", sample, unit="ms")
        table.add(name, *cells)
    pairs = list(zip(*(_ttft(outcomes, name, "chat") for name in (OURS, PEER)), strict=True))
    if pairs:
        added = [ours - theirs for ours, theirs in pairs]
        run.figures["added_ttft_ms"] = round(median(added), 2)
        run.figures["added_ttft_ms_quartiles"] = [
            round(quantile(added, q), 2) for q in (0.25, 0.75)
        ]


def _ttft(outcomes: Outcomes, name: str, kind: str) -> list[float]:
    done = outcomes.of(name, _at("greedy", 1, kind))
    return [answer.ttft_ms for outcome in done for answer in outcome.answers]


def _overhead(run: Run, outcomes: Outcomes) -> None:
    """Mean CPU time per tick in each cell; the figure is the median of those."""
    if not outcomes.overhead_ms:
        return
    title = "CPU time of the model thread outside the engine, 16 sessions, ms per tick"
    table = run.table(title, "system", "n", "median", "lowest", "highest")
    for name, sample in outcomes.overhead_ms.items():
        table.add(name, len(sample), table.median(sample), min(sample), max(sample))
        run.samples(f"CPU time outside the engine, {name}", sample, unit="ms")
    run.figures["tick_overhead_ms"] = round(median(outcomes.overhead_ms[OURS_SPEC]), 3)


def _exactness(run: Run, outcomes: Outcomes) -> None:
    """Equal replies of the exact replicas, drafts on and off; agreement with the peer."""
    everything = [(cell, by_name) for (_, cell), by_name in outcomes.by_round.items()]
    run.figures["exact"] = all(
        by_name[OURS].replies == by_name[OURS_SPEC].replies for _, by_name in everything
    )
    greedy = [by_name for cell, by_name in everything if not cell.temperature]
    pairs = _pairs((by_name[OURS], by_name[PEER]) for by_name in greedy)
    same = [ours == theirs for ours, theirs in pairs]
    if same:
        run.figures["same_reply_as_pipeline"] = round(sum(same) / len(same), 3)


def _pairs(
    outcomes: Iterable[tuple[Outcome, Outcome]],
) -> Iterable[tuple[tuple[int, ...], tuple[int, ...]]]:
    return itertools.chain.from_iterable(
        zip(ours.replies, theirs.replies, strict=True) for ours, theirs in outcomes
    )
