"""The figures of a run, and what the model of `theory` predicts from parts of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bench.harness.figures import Figure, median, quantile
from bench.wan.measure import Measured
from bench.wan.plan import OURS, PLAIN, REGION_DRAFTER, REGION_SUFFIX, ROUNDS, SCHEMES, STREAM
from bench.wan.report import theory
from bench.wan.report.results import Results, Where


@dataclass(slots=True)
class Model:
    """What was measured and what was to be expected. RTTs in ms, by scheme and the one it is held
    against."""

    t_s: float
    """A plain step of the region, as its reader sees it."""
    t_v: float
    """A verification of stop-and-wait's drafts."""
    t_d: float
    """CPU time of the gateway per draft, over that of plain streaming."""
    miss_share: float
    """Of final tokens, those that were no draft of the chain."""
    capacity_predicted: float
    measured_ms: dict[tuple[str, str], float] = field(default_factory=dict)
    predicted_ms: dict[tuple[str, str], float] = field(default_factory=dict)
    """None where the theory has it always ahead: the region never waits."""


def model_of(results: Results) -> Model:
    """From the runs at the least RTT, one chat at a time, all temperatures together."""
    near = Where(results.rtts_ms()[0], 1)
    t_s = results.step_ms(near)
    rounds, stream = results.samples(ROUNDS, near), results.samples(STREAM, near)
    batches = results.batches(ROUNDS, near)
    t_v = 1000 * sum(b.busy_s for b in batches) / max(1, sum(b.num_calls for b in batches))
    num_rounds = max(1, sum(sample.num_rounds for sample in rounds))
    per_round = (sum(len(sample.ids) for sample in rounds) - len(rounds)) / num_rounds
    drafts_per_round = sum(sample.num_drafts for sample in rounds) / num_rounds
    accepted = sum(sample.num_accepted for sample in stream)
    miss_share = max(0.01, 1 - accepted / max(1, sum(len(sample.ids) for sample in stream)))
    t_d = _draft_ms(results)
    made = Model(t_s, t_v, t_d, miss_share, _capacity(results, t_d, t_s))
    made.predicted_ms = {
        (ROUNDS.name, PLAIN.name): theory.rounds_break_even_ms(
            per_round, drafts_per_round, t_s, t_v, t_d
        ),
        (STREAM.name, PLAIN.name): theory.chain_break_even_ms(miss_share, t_s, t_v, t_d),
        (OURS.name, REGION_SUFFIX.name): theory.ahead_limit_ms(miss_share, t_s, t_d),
    }
    made.measured_ms = _measured(results)
    return made


def _measured(results: Results) -> dict[tuple[str, str], float]:
    rtts_ms = results.rtts_ms()
    pairs = ((ROUNDS, PLAIN), (STREAM, PLAIN), (OURS, PLAIN), (OURS, REGION_SUFFIX))
    return {
        (scheme.name, over.name): theory.crossing(
            rtts_ms,
            [median(results.pace_ratios(scheme, Where(rtt, 1), over)) for rtt in rtts_ms],
        )
        for scheme, over in pairs
    }


def _draft_ms(results: Results) -> float:
    """What drafting adds to the gateway's CPU time, per draft that was verified; drafts that were
    made in vain are in it."""
    drafting, plain = (results.batches(scheme) for scheme in (REGION_DRAFTER, PLAIN))
    added_s = sum(b.edge_cpu_s for b in drafting) - sum(b.edge_cpu_s for b in plain)
    num_drafts = sum(sample.num_drafts for batch in drafting for sample in batch.samples)
    return 1000 * max(0.0, added_s) / num_drafts if num_drafts else 0.0


def _capacity(results: Results, t_d: float, t_s: float) -> float:
    samples = results.samples(REGION_DRAFTER)
    commits = max(1, sum(sample.num_rounds for sample in samples))
    drafts = sum(sample.num_drafts for sample in samples)
    return theory.capacity_gain(drafts / commits, t_d, t_s)


def figures_of(
    results: Results, measured: Measured, model: Model, exact: Mapping[str, str]
) -> dict[str, Figure]:
    """Everything a run is judged by."""
    busy = Where(sessions=results.crowds()[-1])
    sent = results.bytes_per_token(OURS)
    ours = results.samples(OURS)
    chars = sum(sample.num_chars for sample in ours)
    gain = median(results.capacity_ratios(OURS, REGION_DRAFTER, busy) or [0.0])
    over_plain = median(results.capacity_ratios(OURS, PLAIN, busy) or [0.0])
    return {
        **_by_rtt(results),
        "erasure": round(sum(sample.erased_chars for sample in ours) / chars, 4),
        "shown_early": round(sum(sample.early_chars for sample in ours) / chars, 4),
        "capacity_gain": round(gain, 3),
        "capacity_predicted": round(model.capacity_predicted, 3),
        "capacity_over_plain": round(over_plain, 3),
        "bytes_per_token_up": round(sent["up"], 2),
        "bytes_per_token_down": round(sent["down"], 2),
        "wire_bytes_per_token_up": round(sent["up wire"], 1),
        "wire_bytes_per_token_down": round(sent["down wire"], 1),
        "exact": dict(exact),
        "step_ms": round(model.t_s, 2),
        "draft_ms": round(model.t_d, 3),
        "miss_share": round(model.miss_share, 3),
        "relay_added_ms_p50": round(measured.relay.lateness_ms(0.5), 2),
        "relay_added_ms_p99": round(measured.relay.lateness_ms(0.99), 2),
        "seconds": round(measured.seconds),
    }


def _by_rtt(results: Results) -> dict[str, Figure]:
    times: dict[str, dict[str, float]] = {}
    for rtt_ms in results.rtts_ms():
        where, key = Where(rtt_ms, 1), f"{rtt_ms:g}"
        ours = results.samples(OURS, where)
        plain = [sample.committed_ms for sample in results.samples(PLAIN, where)]
        for name, values in (
            ("visible_ttft_ms", [sample.visible_ms for sample in ours]),
            ("committed_ttft_ms", [sample.committed_ms for sample in ours]),
            ("stable_ttft_ms", [sample.stable_ms for sample in ours]),
            ("plain_ttft_ms", plain),
        ):
            times.setdefault(name, {})[key] = round(median(values), 1)
            times.setdefault(f"{name}_p95", {})[key] = round(quantile(values, 0.95), 1)
        paces, wholes = results.pace_ratios(OURS, where), results.whole_ratios(OURS, where)
        times.setdefault("committed_pace_ratio", {})[key] = round(median(paces), 3)
        times.setdefault("committed_whole_ratio", {})[key] = round(median(wholes), 3)
    return {**times, "pace_ratio_by_scheme": _paces(results)}


def _paces(results: Results) -> dict[str, Figure]:
    """Medians over all conditions of one chat at a time, by scheme and RTT."""
    return {
        scheme.name: {
            f"{rtt_ms:g}": round(median(results.pace_ratios(scheme, Where(rtt_ms, 1))), 3)
            for rtt_ms in results.rtts_ms()
        }
        for scheme in SCHEMES
    }
