"""Replies by 200 JSON schemas through a real mesh: how many are valid, how many equal the reference
byte for byte, and how fast they come beside free text: the same prompts, as many tokens.

Eight at once, with drafts and without, and while a replica is killed; the first schemas also one at
a time. Every second reply is sampled. In each way blocks of tasks are asked by schema and without,
by turns; speeds are medians over blocks.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from bench.harness import Run, parser, start
from bench.harness.local_mesh import LocalMesh, local_mesh
from bench.structured.chats import (
    Round,
    Said,
    ask,
    is_valid,
    num_moved,
    references,
    sampling,
    without_schema,
)
from bench.structured.schemas import NUM_SCHEMAS, Task, tasks
from outrider.client.wire import SpeculationName

QUICK_SCHEMAS = 24
_BLOCK = 24
"""Tasks that are asked by schema, then without, or the other way round: one of each shape."""
_ONE_BY_ONE = 72
"""Schemas whose replies are asked for one at a time too."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way to ask for replies."""

    name: str
    parallel: int
    speculation: SpeculationName
    kills: bool = False


WAYS = (
    Way("drafts on, 1 at once", 1, "on"),
    Way("drafts off, 1 at once", 1, "off"),
    Way("drafts on, 8 at once", 8, "on"),
    Way("drafts off, 8 at once", 8, "off"),
    Way("drafts on, 8 at once, a replica killed", 8, "on", kills=True),
)


@dataclass(frozen=True, slots=True)
class Measured:
    """What one way brought."""

    way: Way
    by_schema: Sequence[Round]
    """One for each block of tasks."""
    free: Sequence[Round]
    """Of the same blocks; empty: not asked for."""
    num_valid: int
    num_equal: int
    num_moved: int = 0

    @property
    def num_replies(self) -> int:
        return sum(len(done.replies) for done in self.by_schema)

    @property
    def ratios(self) -> list[float]:
        """Speed by schema over that of free text, for each block."""
        pairs = zip(self.by_schema, self.free, strict=False)
        return [one.tokens_per_s / other.tokens_per_s for one, other in pairs]


async def measure(
    mesh: LocalMesh, way: Way, all_tasks: Sequence[Task], truths: Sequence[Said]
) -> Measured:
    """Ask by the schemas and without; where a replica is killed, by the schemas alone."""
    params = [sampling(task, number) for number, task in enumerate(all_tasks)]
    plain = [without_schema(one, len(truth.ids)) for one, truth in zip(params, truths, strict=True)]
    by_schema: list[Round] = []
    free: list[Round] = []
    size = len(all_tasks) if way.kills else _BLOCK
    for begin in range(0, len(all_tasks), size):
        part = slice(begin, begin + size)
        turns = [(params, by_schema)] if way.kills else [(params, by_schema), (plain, free)]
        for how, into in turns if begin // size % 2 == 0 else reversed(turns):
            asked = ask(
                mesh,
                all_tasks[part],
                how[part],
                parallel=way.parallel,
                speculation=way.speculation,
                kill_after=len(all_tasks) // 3 if way.kills else 0,
            )
            into.append(await asked)
    said = [one for done in by_schema for one in done.replies]
    num_valid = sum(is_valid(task, one) for task, one in zip(all_tasks, said, strict=True))
    num_equal = sum(one == truth for one, truth in zip(said, truths, strict=True))
    moved = await asyncio.to_thread(num_moved, mesh) if way.kills else 0
    print(f"{way.name}: {num_valid} valid, {num_equal} equal of {len(said)}", file=sys.stderr)
    return Measured(way, by_schema, free, num_valid, num_equal, moved)


async def measure_all(all_tasks: Sequence[Task], truths: Sequence[Said]) -> list[Measured]:
    """On one mesh, whose replica has seen some replies of each kind before; then on one of two
    replicas."""
    found: list[Measured] = []
    with local_mesh(regions="us-east") as mesh:
        warm = min(4, len(all_tasks))
        for way in WAYS[2:4]:
            await measure(mesh, way, all_tasks[:warm], truths[:warm])
        for way in WAYS:
            if not way.kills:
                count = len(all_tasks) if way.parallel > 1 else _ONE_BY_ONE
                found.append(await measure(mesh, way, all_tasks[:count], truths[:count]))
    with local_mesh() as mesh:
        found += [await measure(mesh, way, all_tasks, truths) for way in WAYS if way.kills]
    return found


def report(
    run: Run, all_tasks: Sequence[Task], truths: Sequence[Said], found: Sequence[Measured]
) -> bool:
    """Fill the table; whether every reply is valid and the reference's."""
    table = run.table(
        f"Replies by {len(all_tasks)} JSON schemas through a mesh",
        "drafts and load", "valid", "equal to the reference", "tokens", "tokens/s",
        "tokens/s of free text", "speed over free text", "tokens drafted, %",
    )  # fmt: skip
    for one in found:
        name, count = one.way.name, one.num_replies
        speeds = [done.tokens_per_s for done in one.by_schema]
        num_tokens = sum(done.num_tokens for done in one.by_schema)
        num_accepted = sum(done.num_accepted for done in one.by_schema)
        table.add(
            name,
            f"{one.num_valid} of {count}",
            f"{one.num_equal} of {count}",
            num_tokens,
            table.median(speeds),
            table.median([done.tokens_per_s for done in one.free]),
            table.median(one.ratios),
            100.0 * num_accepted / max(1, num_tokens),
        )
        run.samples(f"tokens/s, {name}", speeds, unit="tokens/s")
        if one.free:
            free = [done.tokens_per_s for done in one.free]
            run.samples(f"tokens/s of free text, {name}", free, unit="tokens/s")
            run.samples(f"speed over free text, {name}", one.ratios, unit="ratio")
    table.note(f"Medians over blocks of {_BLOCK} replies, asked by schema and without by turns.")
    moved = sum(one.num_moved for one in found)
    table.note(f"The kill came in the middle of replies: {moved} went on at the other replica.")
    whole = [is_valid(task, truth) for task, truth in zip(all_tasks, truths, strict=True)]
    for task, truth, is_whole in zip(all_tasks, truths, whole, strict=True):
        if not is_whole:
            print(f"NOT VALID by the reference: {task.name}: {truth.text[:200]}", file=sys.stderr)
    valid = all(one.num_valid == one.num_replies for one in found) and all(whole)
    equal = all(one.num_equal == one.num_replies for one in found)
    return valid and equal and moved > 0


def main() -> int:
    flags = parser("structured", __doc__ or "")
    flags.add_argument(
        "--schemas", type=int, default=0, metavar="N", help="the first N alone; not recorded"
    )
    arguments = flags.parse_args()
    run = start("structured", arguments)
    run.quick |= bool(arguments.schemas)
    all_tasks = tasks(arguments.schemas or (QUICK_SCHEMAS if arguments.quick else NUM_SCHEMAS))
    truths = references(all_tasks)
    found = asyncio.run(measure_all(all_tasks, truths))
    good = report(run, all_tasks, truths, found)
    run.finish()
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
