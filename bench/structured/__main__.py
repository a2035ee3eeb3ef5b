"""Replies by 200 JSON schemas through a real mesh: how many are valid, how many equal the reference
byte for byte, and how fast they come beside free text of the same length.

One by one and eight at once, with drafts and without, and while a replica is killed. Every second
reply is sampled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from bench.harness import Run, parser, start
from bench.harness.local_mesh import LocalMesh, local_mesh
from bench.structured.chats import Round, Said, ask, is_valid, references, sampling, without_schema
from bench.structured.schemas import NUM_SCHEMAS, Task, tasks
from outrider.client.wire import SpeculationName

QUICK_SCHEMAS = 18


@dataclass(frozen=True, slots=True)
class Way:
    """One way to ask for all replies."""

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
    by_schema: Round
    free: Round | None
    """Free text of the same lengths; None: not asked for."""
    num_valid: int
    num_equal: int


async def measure(
    mesh: LocalMesh, way: Way, all_tasks: Sequence[Task], truths: Sequence[Said]
) -> Measured:
    """Ask once by the schemas, once without."""
    params = [sampling(task, number) for number, task in enumerate(all_tasks)]
    kill_after = len(all_tasks) // 3 if way.kills else 0
    how = {"parallel": way.parallel, "speculation": way.speculation}
    by_schema = await ask(mesh, all_tasks, params, kill_after=kill_after, **how)  # type: ignore[arg-type]
    free = None
    if not way.kills:
        plain = [
            without_schema(one, len(truth.ids)) for one, truth in zip(params, truths, strict=True)
        ]
        free = await ask(mesh, all_tasks, plain, **how)  # type: ignore[arg-type]
    said = by_schema.replies
    num_valid = sum(is_valid(task, one) for task, one in zip(all_tasks, said, strict=True))
    num_equal = sum(one == truth for one, truth in zip(said, truths, strict=True))
    return Measured(way, by_schema, free, num_valid, num_equal)


async def measure_all(all_tasks: Sequence[Task], truths: Sequence[Said]) -> list[Measured]:
    """On one mesh, whose replicas have seen some replies of each kind before."""
    found: list[Measured] = []
    with local_mesh(regions="us-east") as mesh:
        warm = min(4, len(all_tasks))
        for way in WAYS[2:4]:
            await measure(mesh, way, all_tasks[:warm], truths[:warm])
        found += [await measure(mesh, way, all_tasks, truths) for way in WAYS if not way.kills]
    with local_mesh() as mesh:
        found += [await measure(mesh, way, all_tasks, truths) for way in WAYS if way.kills]
    return found


def report(
    run: Run, all_tasks: Sequence[Task], truths: Sequence[Said], found: Sequence[Measured]
) -> bool:
    """Fill tables and figures; whether every reply is valid and the reference's."""
    count = len(all_tasks)
    table = run.table(
        f"Replies by {count} JSON schemas through a mesh",
        "drafts and load", "valid", "equal to the reference", "tokens/s", "tokens/s of free text",
        "faster by", "share of tokens drafted",
    )  # fmt: skip
    for one in found:
        rate = one.by_schema.tokens_per_s
        free = one.free.tokens_per_s if one.free else 0.0
        table.add(
            one.way.name,
            f"{one.num_valid} of {count}",
            f"{one.num_equal} of {count}",
            rate,
            free or "-",
            f"{rate / free - 1:+.1%}" if free else "-",
            one.by_schema.accepted_share,
        )
    whole = [is_valid(task, truth) for task, truth in zip(all_tasks, truths, strict=True)]
    for task, is_whole in zip(all_tasks, whole, strict=True):
        if not is_whole:
            print(f"NOT VALID by the reference: {task.name}")
    valid = all(one.num_valid == count for one in found) and all(whole)
    equal = all(one.num_equal == count for one in found)
    ratios = {
        one.way.name: one.by_schema.tokens_per_s / one.free.tokens_per_s
        for one in found
        if one.free is not None
    }
    run.figures |= {
        "schemas": count,
        "all_valid": valid,
        "all_equal": equal,
        "speed_ratio": ratios,
    }
    return valid and equal


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
