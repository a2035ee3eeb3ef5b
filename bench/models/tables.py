"""What a run found, as tables and figures (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.harness import Run, median
from bench.models.measuring import ALL, CHOSEN, NONE, PATTERNS, Measured


def report(
    run: Run,
    found: Sequence[Measured],
    missing: Mapping[str, str],
) -> None:
    """Fill tables, samples and figures."""
    _starts(run, found, missing)
    _speeds(run, [one for one in found if one.tokens_per_s])
    run.figures |= {
        "exact": {one.subject.spec.name: one.exact for one in found},
        "rss_mb": {one.subject.spec.name: one.memory.peak for one in found if one.memory},
        "ready_s": {
            one.subject.spec.name: {"cold": round(one.cold_s, 1), "warm": round(one.warm_s, 1)}
            for one in found
        },
        "tokens_per_s": {one.subject.spec.name: _medians(one) for one in found if one.tokens_per_s},
        "missing": dict(missing),
    }


def _starts(run: Run, found: Sequence[Measured], missing: Mapping[str, str]) -> None:
    table = run.table(
        "A replica of each model: seconds until it serves, MB that its process holds without KV, "
        "replies that equal the reference's",
        *("model", "format", "ready, cold, s", "ready, warm, s", "peak, cold, MB"),
        *("peak, MB", "resident, MB", "proportional, MB", "anonymous, MB"),
        *("own models for rows", "tokens", "equal replies"),
    )
    for one in found:
        memory = one.memory
        assert memory is not None
        table.add(
            *(one.subject.spec.name, one.subject.what, one.cold_s, one.warm_s, one.cold_peak_mb),
            *(memory.peak, memory.resident, memory.proportional, memory.anonymous),
            *(", ".join(map(str, one.copies)) or "none", one.num_tokens),
            f"{one.num_equal} of {one.num_replies}",
        )
    for text in missing.values():
        table.note(f"{text}.")


def _speeds(run: Run, found: Sequence[Measured]) -> None:
    table = run.table(
        "Tokens per second of one session by the engine alone, by the numbers of rows that have a "
        "model of their own, and CPU time of a token over that with all",
        *("model", "session", "n", CHOSEN, NONE, ALL),
        *(f"CPU, {CHOSEN} / {ALL}", f"CPU, {NONE} / {ALL}"),
    )
    for one in found:
        for pattern in PATTERNS:
            speeds, times = one.tokens_per_s[pattern], one.cpu_ms[pattern]
            ratios = {
                variant: [a / b for a, b in zip(times[variant], times[ALL], strict=True)]
                for variant in (CHOSEN, NONE)
            }
            name = one.subject.spec.name
            table.add(
                *(name, pattern, len(speeds[ALL])),
                *(table.median(speeds[variant]) for variant in (CHOSEN, NONE, ALL)),
                *(table.mean_ratio(ratios[variant]) for variant in (CHOSEN, NONE)),
            )
            for variant, values in speeds.items():
                run.samples(f"{name}, {pattern}, {variant}", values, unit="tokens/s")


def _medians(one: Measured) -> dict[str, Any]:
    return {
        pattern: {variant: round(median(values), 2) for variant, values in variants.items()}
        for pattern, variants in one.tokens_per_s.items()
    }
