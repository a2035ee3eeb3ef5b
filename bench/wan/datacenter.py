"""First words and whole replies with a target as fast as a datacenter's, over networks that jitter,
reorder and lose.

The target's replies are those of the default model, recorded in this run before anything is
measured; the region says them again, a call taking 10, 20 or 30 ms and 0.05 ms more for each token
that it reads (`bench.harness.recorded_engine`). So text and drafts are real, the drafter is the one
that edges come with and computes here, scheduler, router, edge and protocols are the services' own,
and the region's engine alone is emulated. It takes no processor time, so the drafter has a core.

Plain streaming, without any drafts, and Outrider take turns, prompt by prompt, one greedy chat at a
time; schemes and links are those of `bench.wan`. The long way has the jitter, reordering and loss,
in each direction: of plain streaming it is QUIC, from the client to a gateway at the region; of
Outrider gRPC over TCP, from the edge to the router (`bench.relay` says how its losses are
emulated). Last miles are steady. Every reply's ids are compared with the recorded ones, and the run
fails if one differs.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from bench.harness import Cell, Run, Table, parser, start
from bench.harness.load import Request, Work
from bench.harness.paced_replica import Control, program
from bench.harness.prompts import Prompt, interleaved, load_prompts
from bench.harness.recorded_engine import Replies, write_replies
from bench.harness.replica import reference
from bench.harness.run_folder import run_folder
from bench.peers.lineup import rotated
from bench.relay.lane import Conditions, Traffic
from bench.wan.measure import WARM_UP, connected
from bench.wan.plan import CLIENT_RTT_MS, KINDS, OURS, PLAIN, Scheme
from bench.wan.results import ratio, share
from bench.wan.samples import Sample, Word, ask, messages_of
from bench.wan.testbed import STEADY, RegionEngine, Testbed, running_testbed
from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import Vocabulary, load_vocabulary
from outrider.telemetry.logs import configure_logging
from outrider.testing import free_tcp_port

NETWORKS: Mapping[str, Conditions] = {
    "steady": STEADY,
    "jitter 30 ms": Conditions(jitter_ms=30, in_order=True),
    "jitter 50 ms": Conditions(jitter_ms=50, in_order=True),
    "jitter 50 ms, reordering": Conditions(jitter_ms=50),
    "jitter 50 ms, reordering, loss 1 %": Conditions(jitter_ms=50, loss=0.01),
}
"""What the long way does besides its delay, in each direction."""
_SCHEMES = (PLAIN, OURS)
_ROW_MS = 0.05
"""For each token of a call: the target reads 20,000 tokens a second."""
_AIM_MS = 200
"""Within which a first word is to be on screen."""


@dataclass(frozen=True, slots=True)
class Condition:
    """Under which both schemes are asked all prompts."""

    rtt_ms: int
    token_ms: int
    """Of a call of the target."""
    network: str = "steady"
    """One of NETWORKS."""

    @property
    def label(self) -> str:
        """What it is called in the record."""
        return f"RTT {self.rtt_ms} ms, {self.token_ms} ms a call, {self.network}"


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    num_prompts: int
    max_tokens: int
    conditions: tuple[Condition, ...]


FULL = Size(
    num_prompts=54,
    max_tokens=32,
    conditions=(
        *(Condition(rtt_ms, token_ms) for token_ms in (10, 20, 30) for rtt_ms in (80, 250)),
        *(Condition(150, 20, network) for network in NETWORKS),
    ),
)
QUICK = Size(
    num_prompts=3,
    max_tokens=16,
    conditions=(Condition(80, 10), Condition(250, 20, "jitter 50 ms, reordering, loss 1 %")),
)


@dataclass(slots=True)
class Measured:
    """Everything that was measured."""

    chats: dict[tuple[Condition, Scheme], list[Sample]] = field(default_factory=dict)
    """Entry n is of prompt n."""
    traffic: dict[str, Traffic] = field(default_factory=dict)
    """Of all long ways together, by network."""


def main() -> int:
    run = start("wan_datacenter", parser("wan.datacenter", __doc__ or "").parse_args())
    configure_logging("bench", "error")  # the recorded engine would log between the tables
    size = QUICK if run.quick else FULL
    prompts = interleaved(load_prompts(*KINDS, split="test"))[: size.num_prompts]
    vocabulary = load_vocabulary(DEFAULT_MODEL, ModelStore(default_root()))
    cores = os.sched_getaffinity(0)
    with run_folder("recorded") as files:
        print("recording the target's replies", file=sys.stderr)
        replies = record(vocabulary, (WARM_UP, *prompts), size.max_tokens, len(cores))
        write_replies(files.path / "replies.json", replies)
        try:
            measured = asyncio.run(measure(size, prompts, files.path / "replies.json"))
        finally:
            os.sched_setaffinity(0, cores)
    right = [replies[_prompt_ids(vocabulary, prompt)] for prompt in prompts]
    num_wrong = report(run, measured, right)
    _keep(run, size, measured)
    run.finish()
    return int(num_wrong > 0)


def record(
    vocabulary: Vocabulary, prompts: Sequence[Prompt], max_tokens: int, threads: int
) -> Replies:
    """What the default model says to these prompts, greedily; blocks."""
    asked = [_prompt_ids(vocabulary, prompt) for prompt in prompts]
    requests = [Request(ids, max_tokens) for ids in asked]
    return dict(zip(asked, reference(vocabulary, Work(()), requests, threads), strict=True))


def _prompt_ids(vocabulary: Vocabulary, prompt: Prompt) -> tuple[int, ...]:
    return tuple(vocabulary.encode_chat(messages_of(prompt)))


async def measure(
    size: Size, prompts: Sequence[Prompt], replies: Path, edge_settings: Sequence[str] = ()
) -> Measured:
    """Condition by condition, the schemes in turns; `edge_settings` are KEY=VALUE of both edges.
    Moves this process to the edge's cores."""
    measured = Measured()
    control = free_tcp_port()
    engine = RegionEngine(program=program(control, replies=replies, **{"row-ms": _ROW_MS}))
    opened = running_testbed(engine, _SCHEMES, edge_settings=edge_settings)
    async with opened as bed, Control(control) as target:
        for at, condition in enumerate(size.conditions):
            print(f"{condition.label}: {at + 1} of {len(size.conditions)}", file=sys.stderr)
            await target.ask(fixed_ms=condition.token_ms)
            await _ask_all(bed, size, condition, prompts, measured)
    return measured


async def _ask_all(
    bed: Testbed, size: Size, condition: Condition, prompts: Sequence[Prompt], measured: Measured
) -> None:
    chats = {scheme: measured.chats.setdefault((condition, scheme), []) for scheme in _SCHEMES}
    await bed.set_distance(_SCHEMES, condition.rtt_ms, NETWORKS[condition.network])
    async with connected(bed, _SCHEMES) as clients:
        for scheme in _SCHEMES:  # every connection of the way is up and knows its RTT
            await ask(clients[scheme.gateway], scheme, WARM_UP, 0.0, 0, size.max_tokens)
        await bed.relay.take_traffic()
        for number, prompt in enumerate(prompts):
            for scheme in rotated(_SCHEMES, number):
                client = clients[scheme.gateway]
                chats[scheme].append(await ask(client, scheme, prompt, 0.0, 0, size.max_tokens))
        links = (await bed.relay.take_traffic()).links
    seen = measured.traffic.setdefault(condition.network, Traffic())
    for scheme in _SCHEMES:
        for way in links[scheme.long_link]:
            seen.add(way)


_WORDS: Mapping[str, tuple[Scheme, Callable[[Word], float]]] = {
    "plain streaming": (PLAIN, lambda word: word.staying_ms),
    "Outrider, first word shown": (OURS, lambda word: word.shown_ms),
    "Outrider, first word that stays": (OURS, lambda word: word.staying_ms),
}
_ROW = ("RTT, ms", "a call, ms", "network", "chats")
"""The first columns of every table."""


def report(run: Run, measured: Measured, right: Sequence[Sequence[int]]) -> int:
    """All tables; how many replies differ from the recorded ones, prompt by prompt in `right`."""
    words = _table(
        run,
        "Time from asking to the first word on screen, ms, the target as fast as a datacenter's",
        *(column for name in _WORDS for column in (name, "p90")),
        "stays, over plain",
    )
    aims = _table(
        run,
        f"Share of chats whose first word was on screen within {_AIM_MS} ms, the target as fast as "
        "a datacenter's",
        *_WORDS,
    )
    wholes = _table(
        run,
        "Time from asking to the last token, ms, the target as fast as a datacenter's",
        *("plain streaming", "p90", "Outrider", "p90", "over plain", "replies as recorded"),
    )
    num_wrong = 0
    for condition in dict.fromkeys(condition for condition, _ in measured.chats):
        chats = {scheme: measured.chats[condition, scheme] for scheme in _SCHEMES}
        is_right = [
            list(sample.ids) == list(ids)
            for samples in chats.values()
            for sample, ids in zip(samples, right, strict=True)
        ]
        num_wrong += is_right.count(False)
        key = (condition.rtt_ms, condition.token_ms, condition.network)
        times = first_words(chats)
        plain, _, stays = times.values()
        words.add(*key, len(plain), *_told(words, times.values()), str(ratio(stays, plain)))
        shares = [str(share(fmean(ms <= _AIM_MS for ms in it), len(it))) for it in times.values()]
        aims.add(*key, len(plain), *shares)
        whole = [[sample.whole_ms for sample in samples] for samples in chats.values()]
        exact = f"{sum(is_right)} of {len(is_right)}"
        over = str(ratio(whole[1], whole[0]))
        wholes.add(*key, len(right), *_told(wholes, whole), over, exact)
    for table in (words, wholes):
        table.note("Over plain: ratios of means (chats drawn anew, bootstrap).")
    _network_table(run, measured.traffic)
    run.figures["not_exact"] = num_wrong
    return num_wrong


def _table(run: Run, title: str, *columns: str) -> Table:
    return run.table(title, *_ROW, *columns)


def _told(table: Table, series: Iterable[Sequence[float]]) -> list[Cell]:
    """Median and p90 of each."""
    return [cell for ms in series for cell in (table.median(ms), table.quantile(ms, 0.9))]


def first_words(chats: Mapping[Scheme, Sequence[Sample]]) -> dict[str, list[float]]:
    """Times to the first word by what they are called (`_WORDS`), of the chats that have words in
    both schemes."""
    pairs = list(_word_pairs(chats))
    return {name: [told(pair[scheme]) for pair in pairs] for name, (scheme, told) in _WORDS.items()}


def _word_pairs(chats: Mapping[Scheme, Sequence[Sample]]) -> Iterator[dict[Scheme, Word]]:
    for plain, ours in zip(chats[PLAIN], chats[OURS], strict=True):
        if plain.word is not None and ours.word is not None:
            yield {PLAIN: plain.word, OURS: ours.word}


def _network_table(run: Run, traffic: Mapping[str, Traffic]) -> None:
    table = run.table(
        "What the emulated long ways did, both directions and both schemes together",
        *("network", "packets", "lost, or late by a retransmission"),
        *("added by the relay p50, ms", "p95", "p99"),
    )
    for network, seen in traffic.items():
        late = [seen.lateness_ms(at) for at in (0.5, 0.95, 0.99)]
        table.add(network, seen.packets, seen.lost, *late)


def _keep(run: Run, size: Size, measured: Measured) -> None:
    """For the record: what was asked of whom, and the chats one by one."""
    run.setting(
        "all",
        prompts="bench/data/test",
        max_tokens=size.max_tokens,
        client_rtt_ms=CLIENT_RTT_MS,
        token_read_ms=_ROW_MS,
    )
    for network, how in NETWORKS.items():
        run.setting(network, jitter_ms=how.jitter_ms, in_order=how.in_order, loss=how.loss)
    for condition in size.conditions:
        chats = {scheme: measured.chats[condition, scheme] for scheme in _SCHEMES}
        for name, times_ms in first_words(chats).items():
            run.samples(f"{condition.label}: {name}", times_ms, unit="ms")
        for scheme, samples in chats.items():
            whole_ms = [sample.whole_ms for sample in samples]
            run.samples(f"{condition.label}: {scheme.name}, last token", whole_ms, unit="ms")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("interrupted; nothing is recorded", file=sys.stderr)
        sys.exit(130)
