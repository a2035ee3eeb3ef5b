"""What a run found, as tables and figures (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.harness import Run, median
from bench.models.measuring import ALL, CHOSEN, NONE, PATTERNS, Measured
from bench.models.refusals import Refusal


def report(
    run: Run,
    found: Sequence[Measured],
    refused: Sequence[Refusal],
    missing: Mapping[str, str],
) -> None:
    """Fill tables, samples and figures."""
    _starts(run, found, missing)
    _speeds(run, [one for one in found if one.tokens_per_s])
    _refusals(run, refused)
    run.figures |= {
        "exact": {one.subject.spec.name: one.exact for one in found},
        "rss_mb": {one.subject.spec.name: one.memory.peak for one in found if one.memory},
        "ready_s": {
            one.subject.spec.name: {"cold": round(one.cold_s, 1), "warm": round(one.warm_s, 1)}
            for one in found
        },
        "tokens_per_s": {one.subject.spec.name: _medians(one) for one in found if one.tokens_per_s},
        "refused": {one.name: one.as_wanted for one in refused},
        "missing": dict(missing),
    }


def as_it_should_be(found: Sequence[Measured], refused: Sequence[Refusal]) -> bool:
    """Whether every reply is exact and every bad input was refused."""
    return all(one.exact for one in found) and all(one.as_wanted for one in refused)


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


def _refusals(run: Run, refused: Sequence[Refusal]) -> None:
    table = run.table(
        "What cannot be served: the error, whether the store kept a part of it, and whether "
        "another model's replica still gives the reference's reply",
        "input", "error", "kept in the store", "another model serves",
    )  # fmt: skip
    for one in refused:
        table.add(
            one.name,
            one.error or "none",
            ", ".join(one.left) or "nothing",
            "yes" if one.other_serves else "no",
        )
