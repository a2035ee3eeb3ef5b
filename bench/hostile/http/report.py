"""What attacks on the HTTP door did, as tables and figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bench.harness import Figure, Run, pooled
from bench.hostile.http.measuring import DoorResult
from bench.hostile.measuring import MAX_TAIL_RATIO, ratio_cell, tail_ratio


def report(run: Run, results: Sequence[DoorResult], rss_mb: Mapping[str, Sequence[float]]) -> None:
    """`rss_mb`: by process, memory before the first attack and after the last one."""
    _by_attack(run, results)
    _answers(run, results)
    _bystanders(run, results)
    table = run.table(
        "Memory before the first attack and after the last one",
        "process",
        "before, MB",
        "after, MB",
    )
    for name, (before, after) in rss_mb.items():
        table.add(name, round(before, 1), round(after, 1))
    run.figures |= {
        "requests": sum(it.num_requests for it in results),
        "server_errors": sum(_server_errors(it) for it in results),
        "not_implemented": sum(
            times for it in results for what, times in it.answers.items()
            if what in ("answered 501", "answered 505")
        ),
        "rss_growth_mb": round(max(max(it.growth_mb.values()) for it in results), 1),
        "rss_mb": {name: [round(mb, 1) for mb in pair] for name, pair in rss_mb.items()},
        "loop_blocked_ms_max": round(max(max(it.blocked_ms_max.values()) for it in results), 1),
        "leaks": sum(sum(it.leaks.values()) for it in results),
        "tracebacks": sum(it.num_tracebacks for it in results),
        "by_attack": {it.attack.name: _figures(it) for it in results},
        "broken": [f"{it.attack.name}: {miss}" for it in results for miss in it.misses]
        + _slower(results),
    }  # fmt: skip


def _slower(results: Sequence[DoorResult]) -> list[str]:
    """Bystanders who waited too long over all attacks: one alone may have too few waits to say."""
    found = []
    for name in results[0].calm if results else ():
        calm, attacked = (
            pooled(getattr(it, when)[name].gaps_ms for it in results)
            for when in ("calm", "attacked")
        )
        ratio = tail_ratio(calm, attacked)
        if ratio is not None and ratio > MAX_TAIL_RATIO:
            found.append(f"over all attacks the {name} bystander's p95 was {ratio:.1f} times that")
    return found


def _by_attack(run: Run, results: Sequence[DoorResult]) -> None:
    table = run.table(
        "A mesh under attack over HTTP, by attack: requests sent, memory, event loops, and what "
        "two chatting bystanders wait for",
        "attack", "requests", "answers 5xx", "memory growth, max MB", "loop blocked, max ms",
        "loop lag, max ms", "loop lag before, max ms", "native bystander's p95, ratio",
        "HTTP bystander's p95, ratio", "resources left", "tracebacks", "aims missed",
    )  # fmt: skip
    for it in results:
        table.add(
            it.attack.name.replace("_", " "), it.num_requests, _server_errors(it),
            round(max(it.growth_mb.values()), 1), round(max(it.blocked_ms_max.values()), 1),
            round(max(it.lag_ms_max.values()), 1), round(it.calm_lag_ms_max, 1),
            *(ratio_cell(it.tail_ratio(name)) for name in it.calm),
            sum(it.leaks.values()), it.num_tracebacks, len(it.misses),
        )  # fmt: skip
    table.note(
        "Answers 5xx: but 501 and 505, which HTTP prescribes for what a server does not have. "
        "Memory growth: of the process that grew most. Loop lag: the longest that an event loop of "
        "the mesh was late, waiting for a core included; loop blocked: the longest that a loop's "
        "own thread computed at a stretch. Ratio: of a bystander's waits for the first and every "
        "next word, the p95 during the attack over that right before it, from 100 waits on in "
        "both. Resources: tasks, files, "
        "sessions and connections seconds after it."
    )


def _answers(run: Run, results: Sequence[DoorResult]) -> None:
    table = run.table("What each attack was answered", "attack", "answers")
    for it in results:
        told = ", ".join(f"{what} ({times})" for what, times in it.answers.items())
        table.add(it.attack.name.replace("_", " "), told or "nothing")


def _bystanders(run: Run, results: Sequence[DoorResult]) -> None:
    table = run.table(
        "The bystanders, over all attacks: time to the first token and between tokens, ms",
        *("bystander", "while", "chats", "errors", "not exact"),
        *("TTFT p50", "p95", "ITL p50", "p95", "p99"),
    )
    for name in results[0].calm if results else ():
        for when in ("calm", "attacked"):
            waits = [getattr(it, when)[name] for it in results]
            ttft = [ms for it in waits for ms in it.ttft_ms]
            itl = [ms for it in waits for ms in it.itl_ms]
            table.add(
                name, "in calm" if when == "calm" else "attacked",
                sum(it.num_chats for it in waits), sum(len(it.errors) for it in waits),
                sum(it.inexact for it in waits),
                *(table.quantile(ttft, share) for share in (0.5, 0.95)),
                *(table.quantile(itl, share) for share in (0.5, 0.95, 0.99)),
            )  # fmt: skip
            run.samples(f"{name}, {when}, TTFT", ttft, unit="ms")
            run.samples(f"{name}, {when}, ITL", itl, unit="ms")


def _server_errors(result: DoorResult) -> int:
    return sum(
        times
        for what, times in result.answers.items()
        if what.startswith("answered 5") and what not in ("answered 501", "answered 505")
    )


def _figures(result: DoorResult) -> dict[str, Figure]:
    return {
        "requests": result.num_requests,
        "answers": result.answers,
        "rss_growth_mb": round(max(result.growth_mb.values()), 1),
        "loop_blocked_ms_max": round(max(result.blocked_ms_max.values()), 1),
        "loop_lag_ms_max": round(max(result.lag_ms_max.values()), 1),
        "p95_ratio": {name: result.tail_ratio(name) for name in result.calm},
        "leaks": dict(result.leaks),
        "busy_cores": {name: round(cores, 2) for name, cores in result.busy_cores.items()},
        "tracebacks": result.num_tracebacks,
        "broken": result.misses,
        "done": dict(result.findings.done),
    }
