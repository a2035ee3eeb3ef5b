"""A mesh is upgraded from an earlier version to this one and rolled back, process by process, while
chats run: what is lost of them, and how long they pause.

Each version is a wheel of its own. Every process is stopped by SIGTERM, drains, and is started
again as the other version, with the same settings, keys, folders and Redis; once in the order of
docs/guides/upgrades.md, once in the opposite one. Every reply is compared with the reference's. A
pause is the longest time between two commits of a chat, or before its first one, while a process
was replaced. The engine is the fake one unless --real is given: what is measured is how chats move,
not how fast prompts are computed again.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Final

from bench.faults.chats import LONG_PROMPT, PROMPTS, ReferenceChat, make_reference_chats
from bench.harness import Run, parser, start
from bench.harness.mesh import Service
from bench.upgrade.mesh import UpgradedMesh, running
from bench.upgrade.rolling import EDGES_FIRST, SERVERS_FIRST, Rolled, roll
from bench.upgrade.versions import Version, install_commit, install_this
from outrider.tls import Role
from tools.earlier_version import NoHistoryError, commit_of, earlier_commit
from tools.wire_breaking import breaking_changes

NUM_CHATS: Final = 8
"""At once, over QUIC; over HTTP a quarter as many."""
NUM_TOKENS: Final = 100
CALL_MS: Final = 40.0
_ORDERS: Final = {"servers first": SERVERS_FIRST, "edges first": EDGES_FIRST}


@dataclass(frozen=True, slots=True)
class Round:
    """A mesh that was upgraded and rolled back."""

    up: Rolled
    back: Rolled
    problems: list[str]
    """What went wrong; empty: nothing did."""
    warnings: Mapping[str, int]
    """Events that its processes logged."""
    num_learnt_files: int
    """Files with statistics of chats that both versions left."""
    prefix_store_tokens: int
    """Prompt tokens whose KV replicas took from the Redis after the last roll."""


async def there_and_back(
    versions: tuple[Version, Version],
    order: Sequence[Role],
    references: list[ReferenceChat],
    num_chats: int,
    *,
    engine: str = "fake",
) -> Round:
    """Start a mesh on the first version, upgrade it to the second in this order, and roll it back
    in the opposite one. Each version makes API keys that the other reads, and clients of each chat
    with edges of the other."""
    earlier, this = versions
    async with running(earlier, engine, CALL_MS if engine == "fake" else 0.0) as mesh:
        keys, problems = [mesh.key], list[str]()
        rolls = []
        for version, way in ((this, order), (earlier, order[::-1])):
            # While edges of the other version run, which follow the file.
            keys.append(await mesh.new_key(version))
            rolls.append(await roll(mesh, version, way, references, num_chats))
            problems += rolls[-1].problems
            for number, (client, key) in enumerate(product(versions, keys)):
                edge = mesh.edges[number % len(mesh.edges)]
                problems += await _client_chat(client, mesh, edge, key, references[-1])
        mesh.made.files.failed = "; ".join(problems)
        up, back = rolls
        return Round(
            up,
            back,
            problems,
            mesh.warnings(),
            mesh.num_learnt_files(),
            await mesh.prefix_store_tokens(),
        )


async def _client_chat(
    version: Version, mesh: UpgradedMesh, edge: Service, key: str, reference: ReferenceChat
) -> list[str]:
    """Problems of a chat by the command line of a version."""
    sampling = reference.sampling
    asked = {
        "--edge": edge.address,
        "--ca": mesh.ca,
        "--api-key": key,
        "--prompt": reference.prompt,
        "--temperature": sampling.temperature,
        "--seed": sampling.seed,
        "--max-tokens": sampling.max_tokens,
    }
    flags = (str(word) for pair in asked.items() for word in pair)
    text = await version.outrider("chat", *flags)
    if text.removesuffix("\n") == reference.text:
        return []
    return [f"a client of {version.label} got another text from {edge.name}"]


def report(run: Run, rounds: Mapping[str, Round]) -> None:
    """What came of all chats, and how long they paused by what was replaced."""
    replies = run.table(
        "Chats while every process was replaced by one of the other version, one after the other",
        "order", "to", "over", "chats", "failed", "tokens lost", "tokens doubled",
        "replies that differ",
    )  # fmt: skip
    pauses = run.table(
        "Longest pause of each chat while a process was replaced, ms",
        "order", "to", "replaced", "processes", "n", "p50", "p95", "longest",
    )  # fmt: skip
    for name, it in rounds.items():
        for way, rolled in (("this version", it.up), ("the earlier one", it.back)):
            for over, totals in (("QUIC", rolled.chats), ("HTTP", rolled.http)):
                replies.add(
                    name, way, over, totals.chats, len(totals.errors), totals.lost, totals.doubled,
                    totals.inexact,
                )  # fmt: skip
            for role in rolled.roles:
                times = role.pauses_ms
                figures = (pauses.median(times), pauses.quantile(times, 0.95), max(times))
                pauses.add(name, way, role.role.value, role.num_processes, len(times), *figures)
                run.samples(f"pause, {name}, to {way}, {role.role.value}", times, unit="ms")
    sums = [part for it in rounds.values() for way in (it.up, it.back) for part in way.totals]
    run.figures |= {
        "chats": sum(it.chats for it in sums),
        "failed": sum(len(it.errors) for it in sums),
        "lost": sum(it.lost for it in sums),
        "doubled": sum(it.doubled for it in sums),
        "inexact": sum(it.inexact for it in sums),
        "warnings": {name: dict(it.warnings) for name, it in rounds.items()},
        "learnt_files": {name: it.num_learnt_files for name, it in rounds.items()},
        "prefix_store_tokens": {name: it.prefix_store_tokens for name, it in rounds.items()},
        "problems": [problem for it in rounds.values() for problem in it.problems],
    }


async def _measure(
    versions: tuple[Version, Version], engine: str, orders: Mapping[str, Sequence[Role]]
) -> dict[str, Round]:
    prompts = (*PROMPTS, LONG_PROMPT)
    references = await asyncio.to_thread(make_reference_chats, engine, NUM_TOKENS, prompts)
    return {
        name: await there_and_back(versions, order, references, NUM_CHATS, engine=engine)
        for name, order in orders.items()
    }


def main() -> int:
    made = parser("upgrade", __doc__ or "")
    default = "default: the newest release, or the commit named in tools/earlier_version.py"
    made.add_argument("--from", dest="earlier", metavar="REV", help=default)
    made.add_argument(
        "--real", action="store_true", help="replicas with the default model; not recorded"
    )
    arguments = made.parse_args()
    run = start("upgrade", arguments)
    orders = dict(list(_ORDERS.items())[: 1 if run.quick else None])
    run.quick |= arguments.real
    engine = "openvino" if arguments.real else "fake"
    with tempfile.TemporaryDirectory(prefix="outrider-versions-") as folder:
        try:
            commit = commit_of(arguments.earlier) if arguments.earlier else earlier_commit()
            earlier = install_commit(commit, Path(folder) / "earlier")
        except NoHistoryError as error:
            print(error, file=sys.stderr)
            return 2
        if found := breaking_changes(commit):
            print(f"messages of the two versions differ:\n{found}", file=sys.stderr)
        versions = (earlier, install_this(Path(folder) / "this"))
        run.setting("versions", earlier=commit, wire_compatible=not found)
        run.setting("chats", at_once=NUM_CHATS, tokens=NUM_TOKENS, call_ms=CALL_MS, engine=engine)
        report(run, asyncio.run(_measure(versions, engine, orders)))
    run.figures["earlier"] = commit
    run.finish()
    return int(bool(run.figures["problems"]) or bool(found))


if __name__ == "__main__":
    sys.exit(main())
