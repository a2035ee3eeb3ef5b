"""Mixed load on a mesh of three regions while a fault of another kind happens every ten seconds.

Chats over QUIC and HTTP, streamed and whole, and texts to tokenize come all the time, from clients
that resume broken replies and try refused requests again. Processes are killed, told to end and
stopped, hosts and regions cut off, packets lost, names answered wrongly, certificates replaced, a
Redis killed, a disk filled. Which fault happens when follows from `--seed`.

All the time: every reply is exactly the reference's, every request has its reply within two
minutes, no process ends by itself, logs an error or a traceback, or holds more and more memory or
descriptors; and at the end every router has every replica again. What does not hold is printed with
the faults meanwhile, and the exit status is 1. Needs root.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import secrets
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from bench.chaos.disk import SmallDisk, small_disk
from bench.chaos.faults import FAULTS, REDIS_GONE, Stage
from bench.chaos.growth import Life
from bench.chaos.ledger import FaultSpan, Ledger
from bench.chaos.load import LoadSize, MixedLoad
from bench.chaos.redis import Redis, url_of
from bench.chaos.schedule import PERIOD_S, PlannedFault, schedule
from bench.chaos.supervisor import Supervisor
from bench.faults.chats import LONG_PROMPT, PROMPTS, ReferenceChat, make_reference_chats
from bench.harness import Run, parser, start
from bench.regions.hosts import enter_own_network
from bench.regions.mesh import NEAR, ONE_WAY_MS, REGIONS, RegionalMesh, running
from outrider.cli.local.redis_server import find_binary
from outrider.errors import ConfigError, UnavailableError
from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.chat import Message
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import load_vocabulary

HOURS: Final = 0.25
QUICK_HOURS: Final = 0.05
CALL_MS: Final = 200.0
_LENGTHS: Final = (16, 96)
"""Tokens of the replies."""
_CALM_S: Final = 15.0
"""Load alone, before the first fault."""
_PROGRESS_S: Final = 30.0


@dataclass(slots=True)
class Outcome:
    """Of one run."""

    ledger: Ledger = field(default_factory=Ledger)
    num_faults: Counter[str] = field(default_factory=Counter)
    """By kind."""
    num_restarts: Counter[str] = field(default_factory=Counter)
    """By role."""
    lives: dict[str, list[Life]] = field(default_factory=dict)
    """Of the processes that lived long enough to be judged, by role."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What happens in a run."""

    seed: int
    lasts_s: float
    period_s: float
    """From one fault to the next."""
    kinds: tuple[str, ...]
    size: LoadSize = field(default_factory=LoadSize)


def redis_binary() -> Path | None:
    """Path of a redis-server, if there is one here."""
    try:
        return find_binary()
    except ConfigError:
        return None


def kinds_here() -> tuple[str, ...]:
    """The kinds of faults that are possible on this machine."""
    return tuple(it for it in FAULTS if it != REDIS_GONE or redis_binary() is not None)


def make_references() -> list[ReferenceChat]:
    """Short replies and long ones; blocks for seconds."""
    prompts = (*PROMPTS, LONG_PROMPT)
    return [it for length in _LENGTHS for it in make_reference_chats("fake", length, prompts)]


async def run_chaos(plan: Plan, references: list[ReferenceChat]) -> Outcome:
    """Start a mesh, load it, and let the schedule's faults happen. Returns when every request has
    ended and the mesh is whole, or it is known that it does not come to that."""
    outcome = Outcome()
    async with _staged(outcome.ledger) as stage:
        mesh, ledger = stage.mesh, outcome.ledger
        load = MixedLoad(mesh, references, _ids_of(references), ledger, plan.seed, plan.size)
        keeping = asyncio.create_task(stage.supervisor.keep())
        telling = asyncio.create_task(_tell(outcome, time.monotonic()))
        try:
            async with load.running():
                await asyncio.sleep(_CALM_S)
                await _happen(stage, plan, outcome)
            await _until_whole(mesh, ledger)
            await asyncio.to_thread(stage.supervisor.look, time.monotonic())
            for task in (keeping, telling):
                if task.done():
                    task.result()
        finally:
            keeping.cancel()
            telling.cancel()
        outcome.num_restarts = stage.supervisor.num_restarts
        _judge(stage, outcome)
        if ledger.num_violations:
            mesh.made.files.failed = f"{ledger.num_violations} violations"
    return outcome


async def _until_whole(mesh: RegionalMesh, ledger: Ledger) -> None:
    try:
        await mesh.until_whole()
    except TimeoutError:
        for region in mesh.regions:
            try:
                rows = await mesh.replicas_seen(region)
                told = ", ".join(f"{it['name']} {it['state']}" for it in rows)
            except UnavailableError as error:
                told = error.message
            what = f"all is healed, and a router lacks replicas: what that of {region} sees: {told}"
            ledger.violation(what, time.monotonic())


@contextlib.asynccontextmanager
async def _staged(ledger: Ledger) -> AsyncIterator[Stage]:
    binary = redis_binary()
    with small_disk() as disk:
        settings = _settings(disk, with_redis=binary is not None)
        async with running(CALL_MS, lambda _: settings) as mesh:
            redis: dict[str, Redis] = {}
            with _ended(redis):
                if binary is not None:
                    for region in REGIONS:
                        log = mesh.made.folder / f"redis-{region}.log"
                        redis[region] = Redis(mesh.hosts[region], binary, log)
                        redis[region].start()
                supervisor = Supervisor(mesh.made.services, ledger)
                yield Stage(mesh, supervisor, disk, redis)


@contextlib.contextmanager
def _ended(redis: dict[str, Redis]) -> Iterator[None]:
    try:
        yield
    finally:
        for one in redis.values():
            one.kill()


def _settings(disk: SmallDisk, *, with_redis: bool) -> dict[str, dict[str, object]]:
    """What this mesh has besides that of bench.regions: state on a small disk, drafts of replicas,
    tokens and KV in each region's Redis."""
    further: dict[str, dict[str, object]] = {
        "edge": {"state_dir": str(disk.folder), "cache_salt_key": secrets.token_hex(32)},
        "inference": {"scheduler": {"max_sessions": 128}},
        f"{NEAR}-0": {"state_dir": str(disk.folder / "replica")},
    }
    if with_redis:
        shared = {"url": url_of(), "key": secrets.token_hex(32)}
        further["inference"]["prefix_store"] = {**shared, "min_tokens": 32}
        further["tokenizer"] = {"shared_cache": {**shared, "min_chars": 64}}
    return further


def _ids_of(references: list[ReferenceChat]) -> dict[str, tuple[int, ...]]:
    vocabulary = load_vocabulary(DEFAULT_MODEL, ModelStore(default_root()))
    prompts = {it.prompt for it in references}
    return {it: tuple(vocabulary.encode_chat([Message("user", it)])) for it in prompts}


async def _happen(stage: Stage, plan: Plan, outcome: Outcome) -> None:
    """Every fault at its time. Returns when the last one is healed."""
    began_at = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for fault in schedule(plan.seed, plan.kinds, plan.period_s):
            if fault.at_s >= plan.lasts_s:
                break
            await asyncio.sleep(began_at + fault.at_s - time.monotonic())
            outcome.num_faults[fault.kind] += 1
            group.create_task(_strike(stage, fault, outcome.ledger))


async def _strike(stage: Stage, fault: PlannedFault, ledger: Ledger) -> None:
    span: FaultSpan = ledger.struck(fault.kind, time.monotonic())
    async with FAULTS[fault.kind](stage, fault) as whom:
        span.what = f"{fault.kind}: {whom}"
        print(f"fault {fault.number}: {span.what}, {fault.lasts_s:.1f} s", file=sys.stderr)
        await asyncio.sleep(fault.lasts_s)
    ledger.healed(span, time.monotonic())


async def _tell(outcome: Outcome, began_at: float) -> None:
    """A line now and then, and each violation at once."""
    ledger, num_told, due_at = outcome.ledger, 0, began_at + _PROGRESS_S
    while True:
        for violation in ledger.violations[num_told:]:
            print(f"VIOLATION {violation}", file=sys.stderr, flush=True)
        num_told = len(ledger.violations)
        if time.monotonic() >= due_at:
            due_at += _PROGRESS_S
            print(_progress(outcome, time.monotonic() - began_at), file=sys.stderr, flush=True)
        await asyncio.sleep(1.0)


def _progress(outcome: Outcome, seconds: float) -> str:
    counts = outcome.ledger.requests.values()
    again = sum(it.again.total() for it in counts)
    return (
        f"{seconds / 60:.1f} min: {outcome.num_faults.total()} faults, "
        f"{sum(it.exact for it in counts)} of {sum(it.asked for it in counts)} requests exact, "
        f"{outcome.ledger.num_under_way} under way, {again} times sent again, "
        f"{outcome.ledger.num_violations} violations"
    )


def _judge(stage: Stage, outcome: Outcome) -> None:
    """Take note of what grew."""
    roles = {it.name: it.role for it in stage.mesh.made.services}
    for (name, pid), life in stage.supervisor.lives.items():
        if life.is_judged:
            outcome.lives.setdefault(roles[name], []).append(life)
        if life.problem:
            what = f"{name} (process {pid}) grew: {life.problem}"
            outcome.ledger.violation(what, life.began_at)


def report(run: Run, outcome: Outcome) -> None:
    """What was asked, what happened, and what processes held."""
    requests = run.table(
        "Requests while a fault of another kind happened every ten seconds, compared with the "
        "reference",
        "requests", "asked", "exact", "differ", "lost", "doubled", "failed", "sent again",
        "longest, s",
    )  # fmt: skip
    for kind, it in outcome.ledger.requests.items():
        counts = (it.asked, it.exact, it.differ, it.lost, it.doubled, it.failed)
        requests.add(kind, *counts, it.again.total(), round(it.longest_s, 1))
        run.figures[f"again, {kind}"] = dict(it.again)
        run.figures[f"slowest, {kind}"] = it.slowest
    requests.note("Lost and doubled: tokens, over HTTP characters. Longest: with all tries.")
    faults = run.table("Faults", "fault", "times")
    for what, count in sorted(outcome.num_faults.items()):
        faults.add(what, count)
    run.figures["faults"] = dict(outcome.num_faults)
    held = run.table(
        "What processes held after their first minute, and at their end",
        "role", "started anew", "processes judged", "memory at first, MiB", "at the end",
        "most growth", "of it in the second half", "peak",
        "descriptors at first", "at the end", "peak",
    )  # fmt: skip
    for role, lives in outcome.lives.items():
        grown = max(lives, key=_growth_mb)
        held.add(
            *(role, outcome.num_restarts[role], len(lives)),
            round(_mean([it.first.memory_mb for it in lives])),
            round(_mean([it.last.memory_mb for it in lives])),
            round(_growth_mb(grown)),
            round(grown.last.memory_mb - grown.middle.memory_mb),
            round(max(it.peak.memory_mb for it in lives)),
            round(_mean([it.first.num_files for it in lives])),
            round(_mean([it.last.num_files for it in lives])),
            max(it.peak.num_files for it in lives),
        )
    held.note("Means over the processes that lived for four minutes or more; children included.")
    run.figures["violations"] = outcome.ledger.num_violations
    run.figures["told"] = outcome.ledger.violations


def _growth_mb(life: Life) -> float:
    return life.last.memory_mb - life.first.memory_mb


def _mean(values: list[float] | list[int]) -> float:
    return sum(values) / len(values)


def _arguments() -> argparse.Namespace:
    made = parser("chaos", __doc__ or "")
    made.add_argument("--hours", type=float, help=f"default: {HOURS:g}, {QUICK_HOURS:g} if quick")
    made.add_argument(
        "--period", type=float, default=PERIOD_S, help=f"seconds between faults ({PERIOD_S:g})"
    )
    made.add_argument("--seed", type=int, help="of an earlier run, to repeat its faults")
    return made.parse_args()


def main() -> int:
    arguments = _arguments()
    enter_own_network()
    run = start("chaos", arguments)
    seed = secrets.randbits(32) if arguments.seed is None else arguments.seed
    hours = arguments.hours or (QUICK_HOURS if run.quick else HOURS)
    plan = Plan(seed, hours * 3600, arguments.period, kinds_here())
    print(f"seed {seed}", file=sys.stderr)
    delays = {f"{one} to {other}": ms for (one, other), ms in ONE_WAY_MS.items()}
    run.setting("network", one_way_ms=delays)
    run.setting("load", **asdict(plan.size), tokens=_LENGTHS, call_ms=CALL_MS)
    run.setting("faults", seed=seed, hours=hours, period_s=plan.period_s, kinds=plan.kinds)
    outcome = asyncio.run(run_chaos(plan, make_references()))
    for violation in outcome.ledger.violations:
        print(f"VIOLATION {violation}")
    report(run, outcome)
    run.finish()
    return int(bool(outcome.ledger.num_violations))


if __name__ == "__main__":
    sys.exit(main())
