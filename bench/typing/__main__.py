"""Replays the traces, asks, compares with the reference, reports."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Final

import bench.typing
from bench.harness import Run, parser, quantile, start
from bench.harness import processor_time as cpu
from bench.harness.mesh import HOST
from bench.harness.paced_replica import Control, program
from bench.harness.prompts import Prompt, load_prompts
from bench.harness.recorded_engine import Replies, write_replies
from bench.harness.run_folder import run_folder
from bench.typing.traces import Trace, trace_of
from bench.wan.datacenter import record
from bench.wan.plan import CLIENT_RTT_MS, Scheme
from bench.wan.samples import Reader, messages_of
from bench.wan.testbed import Edge, RegionEngine, Testbed, running_testbed
from outrider.client import Client, connect
from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import load_vocabulary
from outrider.sampling.params import SamplingParams
from outrider.telemetry.logs import configure_logging
from outrider.testing import free_tcp_port

_SCHEME: Final = Scheme("typing", "typing", "on")
_EDGE: Final = {"trust": "connection", "drafter.model": "none"}
"""Of the edge beside the typists: what is found again needs a trust group; no draft model computes
beside what is measured."""
_CALL_MS: Final = 20.0
_ROW_MS: Final = 0.05
"""What a call of the region's engine takes, and each token that it reads."""
_READY_MS: Final = 50.0
"""From Enter to the first final word, of a send that had it ready."""
_WARM_UP: Final = Prompt("warm-up", "", "Say a few words about the weather.")
_SEEDS: Final[Mapping[bool, int]] = {False: 20261129, True: 7}
"""Of the traces: for the table, and for tuning."""
_OTHER_EVERY_S: Final = 2.5
_LEAST_CHARS: Final = 20


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    alone: Mapping[int, int]
    """Messages of one typist, by RTT in milliseconds."""
    at_once: Mapping[int, int]
    """Rounds of eight typists, by RTT."""
    max_tokens: int
    num_prompts: int
    num_typists: int = 8


FULL: Final = Size({0: 1, 50: 1, 150: 1, 250: 4}, {50: 1, 150: 1, 250: 4}, 48, 12)
"""Typing takes as long as people take. Nothing is gained beside the region, so eight do not type
there."""
CORE: Final = Size({0: 1, 50: 1, 150: 1, 250: 4}, {250: 1}, 48, 5, num_typists=5)
QUICK: Final = Size({250: 4}, {250: 1}, 24, 2, num_typists=2)


@dataclass(frozen=True, slots=True)
class Sent:
    """One message that was sent, and its reply."""

    prompt: Prompt
    last_pause_s: float
    first_word_ms: float
    """From Enter."""
    ids: tuple[int, ...]
    num_ahead: int
    """Tokens of it that were ready."""


@dataclass(slots=True)
class Part:
    """What one way of sending did under one condition."""

    sent: list[Sent] = field(default_factory=list)
    others: list[Sent] = field(default_factory=list)
    """Chats of somebody who types nothing."""
    engine_s: float = 0.0
    """What the region's engine calls took."""
    region_s: float = 0.0
    """Processor time of the region besides, of replica and router."""
    num_ahead: int = 0
    num_wasted: int = 0
    """Tokens that were begun ahead and sent, or thrown away."""

    @property
    def num_tokens(self) -> int:
        """Final ones."""
        return sum(len(it.ids) for it in (*self.sent, *self.others))


@dataclass(slots=True)
class Measured:
    """By RTT, number of typists, and whether replies are begun ahead."""

    parts: dict[tuple[int, int, bool], Part] = field(default_factory=dict)


def main() -> int:
    core = "seven messages of one typist, most at RTT 250 ms, and five typists at once there"
    flags = parser("typing", bench.typing.__doc__ or "", core=core)
    flags.add_argument(
        "--tuning", action="store_true", help="other prompts and other traces; nothing is recorded"
    )
    arguments = flags.parse_args()
    is_tuning = bool(arguments.tuning)
    if is_tuning:
        arguments.quick = True
    run = start("typing", arguments)
    configure_logging("bench", "error")
    cores = os.sched_getaffinity(0)
    size = CORE if run.core else FULL if is_tuning or not run.quick else QUICK
    prompts = load_prompts("chat_short", split="tuning" if is_tuning else "test")
    prompts = tuple(it for it in prompts if len(it.text) > _LEAST_CHARS)[: size.num_prompts]
    vocabulary = load_vocabulary(DEFAULT_MODEL, ModelStore(default_root()))
    with run_folder("recorded") as files:
        print("recording the region's replies", file=sys.stderr)
        replies = record(vocabulary, (_WARM_UP, *prompts), size.max_tokens, len(cores))
        write_replies(files.path / "replies.json", _continued(replies))
        try:
            measuring = _measured(
                size, prompts, Random(_SEEDS[is_tuning]), files.path / "replies.json"
            )
            measured = asyncio.run(measuring)
        finally:
            os.sched_setaffinity(0, cores)
    truth = {
        it.id: replies[tuple(vocabulary.encode_chat(messages_of(it)))]
        for it in (_WARM_UP, *prompts)
    }
    sent = [it for part in measured.parts.values() for it in (*part.sent, *part.others)]
    return _report(run, size, measured, sum(it.ids != truth[it.prompt.id] for it in sent))


def _continued(replies: Replies) -> Replies:
    """Also of prompts that end with the beginning of their reply: a session that goes on."""
    return {
        prompt + reply[:num_ahead]: reply[num_ahead:]
        for prompt, reply in replies.items()
        for num_ahead in range(len(reply))
    }


async def _measured(size: Size, prompts: Sequence[Prompt], rng: Random, replies: Path) -> Measured:
    measured, port = Measured(), free_tcp_port()
    engine = RegionEngine(program=program(port, replies=replies, **{"row-ms": _ROW_MS}))
    opened = running_testbed(engine, (), {"typing": _EDGE})
    async with opened as bed, Control(port) as control:
        await control.ask(fixed_ms=_CALL_MS)
        for rtt_ms in sorted({*size.alone, *size.at_once}):
            await bed.set_distance([_SCHEME], rtt_ms)
            await _at(bed, control, rtt_ms, size, prompts, rng, measured)
    return measured


async def _at(
    bed: Testbed,
    control: Control,
    rtt_ms: int,
    size: Size,
    prompts: Sequence[Prompt],
    rng: Random,
    measured: Measured,
) -> None:
    """One distance: plain and ahead take turns, message by message or round by round."""
    edge = bed.edges["typing"]
    async with connect(HOST, edge.port, ca=edge.ca) as other:
        await _ask(other, _WARM_UP, size)
        for number in range(size.alone.get(rtt_ms, 0)):
            prompt = prompts[number % len(prompts)]
            trace = trace_of(prompt.text, rng)
            for is_ahead in (number % 2 == 0, number % 2 == 1):
                part = measured.parts.setdefault((rtt_ms, 1, is_ahead), Part())
                await _typists(bed, control, [(prompt, trace)], is_ahead, part, size)
                _tell(rtt_ms, is_ahead, part)
        for turn in range(size.at_once.get(rtt_ms, 0)):
            chosen = [prompts[(n + 8 * turn) % len(prompts)] for n in range(size.num_typists)]
            typed = [(prompt, trace_of(prompt.text, rng)) for prompt in chosen]
            for is_ahead in (turn % 2 == 0, turn % 2 == 1):
                part = measured.parts.setdefault((rtt_ms, size.num_typists, is_ahead), Part())
                await _typists(bed, control, typed, is_ahead, part, size, other)
                _tell(rtt_ms, is_ahead, part)


def _tell(rtt_ms: int, is_ahead: bool, part: Part) -> None:
    words = " ".join(f"{it:.0f}" for it in sorted(_words(part.sent)))
    way = "ahead" if is_ahead else "plain"
    cost_ms = 1e3 * _cost(part)
    print(
        f"RTT {rtt_ms} ms, {way}: first words after {words} ms; {cost_ms:.1f} ms of the engine "
        "for each token",
        file=sys.stderr,
    )


async def _typists(
    bed: Testbed,
    control: Control,
    typed: Sequence[tuple[Prompt, Trace]],
    is_ahead: bool,
    part: Part,
    size: Size,
    other: Client | None = None,
) -> None:
    """Each on a connection of the own, all at once; `other` chats beside them."""
    edge = bed.edges["typing"]
    region = (edge.region.replica.pid, edge.region.router.pid)
    clients = [connect(HOST, edge.port, ca=edge.ca) for _ in typed]
    entered = [await client.__aenter__() for client in clients]
    before, worked = [cpu.of_threads(pid) for pid in region], await control.ask()
    counts = await _ahead_tokens(edge)
    beside = None if other is None else asyncio.create_task(_beside(other, part, size))
    try:
        part.sent += await asyncio.gather(
            *(
                _typist(client, prompt, trace, size, is_ahead=is_ahead, waits=len(typed) > 1)
                for client, (prompt, trace) in zip(entered, typed, strict=True)
            )
        )
    finally:
        if beside is not None:
            beside.cancel()
            await asyncio.gather(beside, return_exceptions=True)
        for client in clients:
            await client.__aexit__(None, None, None)
    after, done = [cpu.of_threads(pid) for pid in region], await control.ask()
    part.engine_s += (done["busy_ms"] - worked["busy_ms"]) / 1e3
    part.region_s += sum(map(cpu.between, before, after)) / 1e9
    now = await _ahead_tokens(edge)
    part.num_ahead += round(now["sent"] - counts["sent"])
    part.num_wasted += round(now["discarded"] - counts["discarded"])


async def _typist(
    client: Client, prompt: Prompt, trace: Trace, size: Size, *, is_ahead: bool, waits: bool
) -> Sent:
    """`waits`: also until the message would have been typed, if the edge is told nothing."""
    began = perf_counter()
    if is_ahead:
        typing = client.typing(ahead=True, sampling=SamplingParams(max_tokens=size.max_tokens))
        for at_s, text in trace.keys:
            await _until(began + at_s)
            typing.update(text)
    if is_ahead or waits:
        await _until(began + trace.enter_s)
    return _sent(prompt, trace.last_pause_s, *await _ask(client, prompt, size))


async def _beside(client: Client, part: Part, size: Size) -> None:
    """Chats one after the other, until it is cancelled."""
    while True:
        began = perf_counter()
        part.others.append(_sent(_WARM_UP, 0.0, *await _ask(client, _WARM_UP, size)))
        await _until(began + _OTHER_EVERY_S)


async def _ask(client: Client, prompt: Prompt, size: Size) -> tuple[Reader, int]:
    reader, began = Reader(), perf_counter()
    async with client.chat(
        messages_of(prompt),
        sampling=SamplingParams(max_tokens=size.max_tokens),
        provisional=False,
    ) as chat:
        async for event in chat:
            reader.take(event, (perf_counter() - began) * 1e3)
        result = await chat.result()
    return reader, result.speculation_stats.ahead_tokens


def _sent(prompt: Prompt, last_pause_s: float, reader: Reader, num_ahead: int) -> Sent:
    sample = reader.sample(0, 0)
    word_ms = sample.whole_ms if sample.word is None else sample.word.final_ms
    return Sent(prompt, last_pause_s, word_ms, sample.ids, num_ahead)


async def _until(at: float) -> None:
    if (left_s := at - perf_counter()) > 0:
        await asyncio.sleep(left_s)


async def _ahead_tokens(edge: Edge) -> dict[str, float]:
    """Tokens begun ahead at this edge so far, by fate."""
    found = {"sent": 0.0, "discarded": 0.0}
    for sample in await edge.service.samples():
        if sample.name == "outrider_edge_ahead_tokens_total":
            found[sample.labels["fate"]] += sample.value
    return found


def _report(run: Run, size: Size, measured: Measured, num_wrong: int) -> int:
    table = run.table(
        "From Enter to the first final word",
        *("typists", "RTT, ms", "sends", "plain p50, ms", "ahead p50, ms", "ready within 50 ms"),
        *("tokens sent", "tokens wasted", "engine's time over plain", "processor time over plain"),
    )
    others = run.table(
        "Somebody else's chats beside eight typists: to the first final word",
        *("RTT, ms", "chats", "plain p50, ms", "plain p99, ms", "ahead p50, ms", "ahead p99, ms"),
    )
    shares: dict[str, dict[str, float]] = {}
    words: dict[str, dict[str, float]] = {}
    costs: list[tuple[float, float]] = []
    for rtt_ms, typists in sorted({key[:2] for key in measured.parts}, key=lambda it: it[::-1]):
        plain = measured.parts[rtt_ms, typists, False]
        ahead = measured.parts[rtt_ms, typists, True]
        share = _ready_share(ahead.sent)
        own = f"{typists}"
        shares.setdefault(own, {})[str(rtt_ms)] = round(share, 3)
        p50 = quantile(_words(ahead.sent), 0.5)
        words.setdefault(own, {})[str(rtt_ms)] = round(p50, 1)
        costs.append((_cost(ahead), _cost(plain)))
        cpu_cost: float | str = "-"  # alone, plain does not wait while the message is typed
        if typists > 1:
            spent = [part.region_s / part.num_tokens for part in (ahead, plain)]
            cpu_cost = round(spent[0] / spent[1], 2)
        table.add(
            *(typists, rtt_ms, len(ahead.sent), round(quantile(_words(plain.sent), 0.5), 1)),
            *(round(p50, 1), f"{share:.0%}", ahead.num_ahead, ahead.num_wasted),
            *(round(_cost(ahead) / _cost(plain), 2), cpu_cost),
        )
        for name, part in (("plain", plain), ("ahead", ahead)):
            label = f"{typists} typists, RTT {rtt_ms} ms, {name}: first word"
            run.samples(label, _words(part.sent), unit="ms")
            if part.others:
                run.samples(f"{label} of somebody else", _words(part.others), unit="ms")
        if plain.others and ahead.others:
            cells = [
                round(quantile(_words(part.others), at), 1)
                for part in (plain, ahead)
                for at in (0.5, 0.99)
            ]
            others.add(rtt_ms, len(ahead.others), *cells)
    table.note(
        "Engine's time: of its calls, per final token, what was computed while typing included. "
        "Processor time: of replica and router besides, per final token; not of one typist, for "
        "whom plain does not wait while the message is typed."
    )
    _by_pause(run, measured)
    run.setting(
        "all",
        max_tokens=size.max_tokens,
        client_rtt_ms=CLIENT_RTT_MS,
        call_ms=_CALL_MS,
        token_read_ms=_ROW_MS,
    )
    run.figures["ready_share"] = shares
    run.figures["first_word_ms_p50"] = words
    run.figures["region_cost"] = round(
        sum(ahead for ahead, _ in costs) / sum(plain for _, plain in costs), 3
    )
    run.figures["not_exact"] = num_wrong
    run.figures["exact"] = not num_wrong
    run.finish()
    return int(num_wrong > 0)


def _by_pause(run: Run, measured: Measured) -> None:
    """The assumption that the result depends on most."""
    table = run.table(
        "Ready within 50 ms of Enter at RTT 250 ms, by the pause before Enter",
        *("pause, s", "sends", "ready"),
    )
    sent = [
        it
        for (rtt_ms, _, is_ahead), part in measured.parts.items()
        if rtt_ms == 250 and is_ahead
        for it in part.sent
    ]
    for low, high in ((0.0, 0.5), (0.5, 1.0), (1.0, 2.0), (2.0, 99.0)):
        some = [it for it in sent if low <= it.last_pause_s < high]
        if some:
            name = f"{low:g} to {high:g}" if high < 99 else f"{low:g} and more"
            table.add(name, len(some), f"{_ready_share(some):.0%}")


def _cost(part: Part) -> float:
    """Seconds of the region's engine for each final token."""
    return part.engine_s / part.num_tokens


def _ready_share(sent: Iterable[Sent]) -> float:
    ready = [it.first_word_ms <= _READY_MS for it in sent]
    return sum(ready) / len(ready)


def _words(sent: Iterable[Sent]) -> list[float]:
    return [it.first_word_ms for it in sent]


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("interrupted; nothing is recorded", file=sys.stderr)
        sys.exit(130)
