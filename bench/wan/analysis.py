"""The figures of a run, and what a model of drafting at a distance predicts from parts of it
(pure).

Symbols: t_s a plain step of the region, t_v a verification, t_d a draft, all in ms; E tokens per
exchange with the region, its own included; k drafts per exchange or commit; m the share of tokens
that needed a wait. "Speculation at a Distance" (arXiv 2606.25091) has the same break-even for
stop-and-wait as RTT < alpha / (1 - alpha) * t_s - k * t_d, of which E * t_s - k * t_d - t_v is the
form for measured E and a verification that costs more than a step; its Prop. 9 is the capacity. For
a region that never waits the edge's own model says it (`break_even_rtt_s`).

Capacity is committed tokens per second of the region's CPU time: of replica (or waiting verifier)
and router, prompts included, and where the gateway drafts at the region, of its drafter's process.
What else a gateway does is the same work with and without drafts, and is not counted.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from bench.harness import Figure, mean_ratio, median, quantile
from bench.wan.first_words import first_word_figures
from bench.wan.measure import Measured
from bench.wan.plan import (
    NO_UPLOAD,
    OURS,
    PLAIN,
    REGION_DRAFTER,
    REGION_SUFFIX,
    STOP_AND_WAIT_EDGE,
    STREAM,
)
from bench.wan.results import Results, Selection, quantile_over_chats
from bench.wan.waiting_verifier import Costs
from services.edge.session.speedup_model import SessionConditions, break_even_rtt_s

_LEAST_GAIN = 0.02
"""Less is not ahead."""
_REACH = 64
"""Drafts of a chain that a prediction looks at."""


@dataclass(slots=True)
class Model:
    """What was measured and what was to be expected. RTTs in ms, by scheme and the one it is held
    against."""

    t_s: float
    """A plain step of the region, as its reader sees it."""
    t_v: float
    """A verification of as many drafts as stop-and-wait sends."""
    t_d: float
    """A call of the draft model, as an edge sees it; 0 without a model."""
    miss_share: float
    """Of final tokens, those after which the chain had to begin anew."""
    measured_ms: dict[tuple[str, str], float] = field(default_factory=dict)
    predicted_ms: dict[tuple[str, str], float] = field(default_factory=dict)
    """Nothing where the scheme is ahead by another thing than the edge's drafts."""


def model_of(results: Results) -> Model:
    """From the runs at the least RTT, one chat at a time, all temperatures together. Without the
    schemes that wait, which tell what a draft and a verification cost, nothing is predicted."""
    near = Selection(results.rtts_ms()[0], 1)
    t_s, t_d = results.step_ms(near), _draft_ms(results, near)
    waiting, stream = results.samples(STOP_AND_WAIT_EDGE, near), results.samples(STREAM, near)
    num_exchanges = max(1, sum(sample.num_later_commits for sample in waiting))
    tokens_per_exchange = (
        sum(len(sample.ids) for sample in waiting) - len(waiting)
    ) / num_exchanges
    drafts_per_exchange = sum(sample.num_drafts for sample in waiting) / num_exchanges
    num_restarts = sum(sample.num_restarts for sample in stream)
    miss_share = max(0.01, num_restarts / max(1, sum(len(sample.ids) for sample in stream)))
    fixed_ms, row_ms = _line_ms(results)
    t_v = fixed_ms + row_ms * max(2.0, 1 + drafts_per_exchange)
    made = Model(t_s, t_v, t_d, miss_share)
    if not (waiting and stream):
        return made
    made.measured_ms = _measured(results)
    made.predicted_ms = {
        (STOP_AND_WAIT_EDGE.name, PLAIN.name): stop_and_wait_break_even_ms(
            tokens_per_exchange, drafts_per_exchange, t_s, t_v, t_d
        ),
        (STREAM.name, PLAIN.name): chain_break_even_ms(miss_share, t_s, t_v, t_d),
        (OURS.name, REGION_SUFFIX.name): _ahead_ms(results, made, row_ms),
    }
    return made


def _line_ms(results: Results) -> tuple[float, float]:
    """A call's fixed cost, and that of a row."""
    costs = Costs()
    for batch in (*results.batches(STOP_AND_WAIT_EDGE), *results.batches(STREAM)):
        costs = costs.plus(batch.spent.costs)
    fixed_s, row_s = costs.line_s()
    return 1000 * fixed_s, 1000 * row_s


def _ahead_ms(results: Results, model: Model, row_ms: float) -> float:
    """What an edge's controller would say of a region that drafts for itself."""
    near = Selection(results.rtts_ms()[0], 1)
    region = [sample for sample in results.samples(REGION_SUFFIX, near) if sample.num_later_commits]
    own_tokens = median(
        [(len(sample.ids) - 1) / sample.num_later_commits for sample in region] or [1.0]
    )
    commit_ms = median([s.token_ms for s in region if s.token_ms] or [model.t_s]) * own_tokens
    conditions = SessionConditions(
        rtt_s=0.0,
        draft_s=model.t_d / 1000,
        interval_s=commit_ms / 1000,
        row_s=row_ms / 1000,
        own_tokens=own_tokens,
    )
    survival = [(1 - model.miss_share) ** n for n in range(_REACH)]
    return 1000 * break_even_rtt_s(conditions, survival, _LEAST_GAIN)


def _measured(results: Results) -> dict[tuple[str, str], float]:
    rtts_ms = results.rtts_ms()
    pairs = ((STOP_AND_WAIT_EDGE, PLAIN), (STREAM, PLAIN), (OURS, PLAIN), (OURS, REGION_SUFFIX))
    return {
        (scheme.name, over.name): crossing(
            rtts_ms,
            [_middle(results.pace_ratios(scheme, results.alone(rtt), over)) for rtt in rtts_ms],
            level=1 + _LEAST_GAIN if over is REGION_SUFFIX else 1.0,
        )
        for scheme, over in pairs
    }


def _draft_ms(results: Results, near: Selection) -> float:
    heard = (*results.batches(STOP_AND_WAIT_EDGE, near), *results.batches(STREAM, near))
    calls_ms = [call_ms for batch in heard for call_ms in batch.calls_ms]
    return median(calls_ms) if calls_ms else 0.0


def figures_of(
    results: Results, measured: Measured, model: Model, exact: Mapping[str, str]
) -> dict[str, Figure]:
    """Everything a run is judged by."""
    return {
        **first_word_figures(results),
        **_by_rtt(results),
        **_with_several_sessions(results),
        **_costs(results),
        **_capacities(results),
        "exact": dict(exact),
        "drafter": measured.drafter,
        "waiting_drafter": measured.waiting_drafter,
        "rounds": measured.num_rounds,
        "step_ms": round(model.t_s, 2),
        "draft_ms": round(model.t_d, 3),
        "miss_share": round(model.miss_share, 3),
        "relay_added_ms_p50": round(measured.relay.lateness_ms(0.5), 2),
        "relay_added_ms_p99": round(measured.relay.lateness_ms(0.99), 2),
        "seconds": round(measured.seconds),
        "placements": [
            {"process": one.process, "cores": list(one.cores), "threads": one.threads}
            for one in measured.placements
        ],
    }


def _costs(results: Results) -> dict[str, Figure]:
    """The long link's bytes for a final token; CPU time for one, of region and edge."""
    sent = results.bytes_per_token(OURS)
    return {
        "bytes_per_token_up": round(sent["up"], 2),
        "bytes_per_token_down": round(sent["down"], 2),
        "wire_bytes_per_token_up": round(sent["up wire"], 1),
        "wire_bytes_per_token_down": round(sent["down wire"], 1),
        "cpu_ms_per_token": {
            scheme.name: {
                f"{sessions} chats": [
                    round(cpu_ms, 3)
                    for cpu_ms in results.cpu_ms_per_token(scheme, Selection(sessions=sessions))
                ]
                for sessions in results.session_counts()
                if results.batches(scheme, Selection(sessions=sessions))
            }
            for scheme in results.schemes()
        },
    }


def _capacities(results: Results) -> dict[str, Figure]:
    """The gain over a region that runs the draft model itself is that with most chats at once."""
    found = capacities(results)
    most = next((one for one in reversed(found) if one.over_drafter), found[-1])
    by_chats = {
        str(one.sessions): {
            "over_plain": round(one.over_plain, 3),
            "over_region_suffix": round(one.over_suffix, 3),
            "over_region_drafter": round(one.over_drafter, 3),
            "predicted_over_region_drafter": round(one.predicted, 3),
        }
        for one in found
    }
    return {
        "capacity_gain": round(most.over_drafter, 3),
        "capacity_predicted": round(most.predicted, 3),
        "capacity_by_chats": by_chats,
    }


def _by_rtt(results: Results) -> dict[str, Figure]:
    """One chat at a time."""
    times: dict[str, dict[str, Figure]] = {}
    for rtt_ms in results.rtts_ms():
        for name, figure in (*_first(results, rtt_ms), *_pace(results, rtt_ms)):
            times.setdefault(name, {})[f"{rtt_ms:g}"] = figure
    return {**times, "pace_ratio_by_scheme": _paces(results)}


def _first(results: Results, rtt_ms: float) -> Iterator[tuple[str, Figure]]:
    """Times to the first text on screen and to the first final token, greedy: medians."""
    where = results.alone(rtt_ms)
    ours = results.samples(OURS, where)
    for name, values in (
        ("visible_ttft_ms", [sample.visible_ms for sample in ours]),
        ("committed_ttft_ms", [sample.committed_ms for sample in ours]),
        ("plain_ttft_ms", [sample.committed_ms for sample in results.samples(PLAIN, where)]),
    ):
        p95 = quantile_over_chats(values, 0.95)
        yield name, round(median(values), 1)
        yield f"{name}_p95", None if p95 is None else round(p95, 1)


def _pace(results: Results, rtt_ms: float) -> Iterator[tuple[str, Figure]]:
    """Ours over plain streaming, greedy, and sampled where that was asked."""
    alone = results.alone(rtt_ms)
    paces = results.pace_ratios(OURS, alone)
    yield "committed_pace_ratio", round(_middle(paces), 3)
    yield "committed_pace_low", round(quantile(paces, 0.25) if paces else 0.0, 3)
    yield "committed_pace_high", round(quantile(paces, 0.75) if paces else 0.0, 3)
    yield "committed_pace_chats", len(paces)
    yield "committed_whole_ratio", round(_middle(results.whole_ratios(OURS, alone)), 3)
    for temperature in results.temperatures()[1:]:
        sampled = results.pace_ratios(OURS, Selection(rtt_ms, 1, temperature))
        if sampled:
            yield f"committed_pace_ratio_t{temperature:g}", round(median(sampled), 3)


def _paces(results: Results) -> dict[str, Figure]:
    """Medians over greedy chats, one at a time, by scheme and RTT."""
    return {
        scheme.name: {
            f"{rtt_ms:g}": round(_middle(results.pace_ratios(scheme, results.alone(rtt_ms))), 3)
            for rtt_ms in results.rtts_ms()
        }
        for scheme in results.schemes()
    }


def _with_several_sessions(results: Results) -> dict[str, Figure]:
    """Of chats at once, all RTTs and temperatures together: ours over plain streaming, and over an
    edge that sends no draft; geometric means with the ends of their 95 % intervals."""
    found: dict[str, dict[str, Figure]] = {"crowd_pace_ratio": {}, "crowd_pace_of_sending": {}}
    for sessions in results.session_counts():
        where = Selection(sessions=sessions)
        for name, over in zip(found, (PLAIN, NO_UPLOAD), strict=True):
            ratios = results.pace_ratios(OURS, where, over)
            if len(ratios) > 1 and sessions > 1:
                found[name][str(sessions)] = [round(value, 3) for value in mean_ratio(ratios)]
    return dict(found)


def _middle(values: Sequence[float]) -> float:
    """The median; 0 if every reply came at once."""
    return median(values) if values else 0.0


@dataclass(frozen=True, slots=True)
class Capacity:
    """With so many chats at once. Ratios are of tokens per core-second on the same chats, 0 where
    there were none."""

    sessions: int
    over_plain: float
    over_suffix: float
    over_drafter: float
    """Over a region that runs the draft model itself."""
    drafts_per_commit: float
    """k, of that region."""
    draft_ms: float
    """t_d: CPU time of its drafter for each draft it verified."""
    token_ms: float
    """t_s: CPU time of a region that does not draft, for each token of the same chats."""

    @property
    def predicted(self) -> float:
        """Of `over_drafter`; 0 where that was not measured."""
        if not self.over_drafter:
            return 0.0
        return capacity_gain(self.drafts_per_commit, self.draft_ms, self.token_ms)


def capacities(results: Results) -> list[Capacity]:
    """By chats at once, rising."""
    return [_capacity(results, sessions) for sessions in results.session_counts()]


def _capacity(results: Results, sessions: int) -> Capacity:
    where = Selection(sessions=sessions)
    batches = results.batches(REGION_DRAFTER, where)
    samples = [sample for batch in batches for sample in batch.samples]
    num_drafts = sum(sample.num_drafts for sample in samples)
    num_commits = sum(len(sample.commits) for sample in samples)
    draft_s = sum(batch.spent.draft_s for batch in batches)
    plain_s = results.paired_core_s(PLAIN, REGION_DRAFTER, where)
    return Capacity(
        sessions,
        results.capacity_ratio(OURS, PLAIN, where),
        results.capacity_ratio(OURS, REGION_SUFFIX, where),
        results.capacity_ratio(OURS, REGION_DRAFTER, where),
        num_drafts / num_commits if num_commits else 0.0,
        1000 * draft_s / num_drafts if num_drafts else 0.0,
        1000 / plain_s if plain_s else 0.0,
    )


def stop_and_wait_break_even_ms(
    tokens_per_exchange: float, drafts_per_exchange: float, t_s: float, t_v: float, t_d: float
) -> float:
    """RTT below which stop-and-wait drafting beats plain streaming; 0: none."""
    return max(0.0, tokens_per_exchange * t_s - drafts_per_exchange * t_d - t_v)


def chain_break_even_ms(miss_share: float, t_s: float, t_v: float, t_d: float) -> float:
    """RTT below which an asynchronous chain does: it runs at t_d and pays RTT + t_v + t_d for each
    miss; 0: none."""
    return max(0.0, (t_s - t_d) / miss_share - t_v - t_d)


def capacity_gain(drafts_per_commit: float, t_d: float, t_s: float) -> float:
    """Sessions per verifier with drafting elsewhere over drafting beside it, 1 + k * t_d / t_s;
    without a t_s, 1."""
    return 1 + drafts_per_commit * t_d / t_s if t_s else 1.0


def crossing(xs: Sequence[float], ratios: Sequence[float], level: float = 1.0) -> float:
    """Where the ratio falls below `level`, between neighbours linearly; 0 if it begins there, the
    last x if it never does. xs rise."""
    if ratios[0] < level:
        return 0.0
    pairs = zip(xs, ratios, strict=True)
    for (x, high), (next_x, low) in itertools.pairwise(pairs):
        if low < level:
            return x + (next_x - x) * (high - level) / (high - low)
    return xs[-1]
