"""What a record keeps of a run beside its tables: the samples, and how everybody was set up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from bench.harness.figures import Run
from bench.wan.measure import Links, Measured
from bench.wan.plan import Size
from bench.wan.report.first_words import how
from bench.wan.report.results import Results, Where
from bench.wan.samples import Sample

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
                where = Where(rtt_ms, sessions, temperature)
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


def keep_settings(
    run: Run, size: Size, links: Links, measured: Measured, settings: Sequence[str]
) -> None:
    """What was asked, over which links, on which cores, of whom."""
    asked = {prompt.id for turn in range(measured.num_rounds) for prompt in size.prompts(turn)}
    run.setting(
        "all",
        prompts="bench/data/held_out",
        different_prompts=len(asked),
        max_tokens=size.max_tokens,
        client_rtt_ms=links.client_rtt_ms,
        jitter_ms=links.jitter_ms,
        loss=links.loss,
        service_settings=list(settings),
        drafter=measured.drafter,
    )
    for place in measured.placements:
        run.setting(place.process, cores=list(place.cores), model_threads=place.threads)
    for scheme in size.schemes:
        run.setting(
            scheme.name,
            gateway=scheme.gateway or "the bench",
            speculation=scheme.speculation,
            provisional=scheme.provisional,
            links_rtt_ms={
                f"RTT {rtt_ms:g}": scheme.rtts_ms(rtt_ms, links.client_rtt_ms)
                for rtt_ms in size.rtts_ms
            },
        )
