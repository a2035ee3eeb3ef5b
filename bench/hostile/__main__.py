"""Attacks a mesh of real processes in one way after the other while a bystander chats, and says
what each did to memory, event loops and the bystander, and whether it learnt anything of others'
chats.

The first two rows are no attacks but further clients that chat as the bystander does: what they
cost him is the yardstick for the others.

The attacker is a process of the lowest priority, so that what the bystander loses is what the
attack costs the services, not what it takes of the cores by itself. Every attack is compared with
the same time in calm right before it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
from collections.abc import Sequence

from bench.harness import Cell, Figure, Run, parser, start
from bench.harness.local_mesh import LocalMesh, local_mesh
from bench.hostile.bystander import bystanding
from bench.hostile.catalog import ATTACKS, HTTP_ATTACKS, Attack, attack_of
from bench.hostile.http import door
from bench.hostile.measuring import AttackResult, measure, ratio_cell
from bench.hostile.target import target_of

SETTINGS = (
    "edge.quic.idle_timeout_s=3",
    "edge.resumption.window_s=3",
    "inference.kv_bytes=268435456",
    "inference.prepare_first=true",
)
"""Connections and chats of clients that vanished are given up sooner than by default, so that a run
need not wait for it. The KV pool is so small that it can be filled before the first attack
(FILL_TOKENS), and models are compiled before that: either's memory, touched for the first time,
would look like an attack's. Nothing else is changed."""
FILL_TOKENS = 13_000
"""Prompt tokens before the first attack. The pool of SETTINGS has room for 11,650 tokens of
SmolLM2-135M: 23,040 bytes each (30 layers, 3 heads of 64 values for keys and values, bf16). The
fake engine has no pool to fill, and no room for such prompts."""
WARM_UP_S = 20.0


async def attacked(
    mesh: LocalMesh, attacks: Sequence[Attack], seconds: float, fill_tokens: int
) -> list[AttackResult]:
    """Make all attacks, one after the other, on one mesh, after prompts of `fill_tokens` in all."""
    target, results = target_of(mesh), []
    async with bystanding(target) as bystander:
        await bystander.warm_up(WARM_UP_S, fill_tokens)
        for attack in attacks:
            result = await measure(mesh, target, attack, bystander, seconds)
            results.append(result)
            print(line(result), flush=True)
    return results


def line(result: AttackResult) -> str:
    """One attack's result in a line, printed while the run goes on."""
    said = "; ".join(result.misses) or "no aim missed"
    return (
        f"{result.attack.name}: grew {max(result.growth_mb.values()):.0f} MB, loop blocked "
        f"{max(result.blocked_ms_max.values()):.0f} ms, late {max(result.lag_ms_max.values()):.0f} "
        f"(calm {result.calm_lag_ms_max:.0f}), "
        f"bystander's p95 x {ratio_cell(result.tail_ratio)}; {said}; {json.dumps(result.done)}"
    )


def report(run: Run, results: Sequence[AttackResult]) -> None:
    """Table and figures."""
    table = run.table(
        "A mesh under attack, by attack: memory, event loops, and what a chatting bystander waits "
        "for",
        "attack", "memory growth, max MB", "loop blocked, max ms", "loop lag, max ms",
        "loop lag before, max ms", "n before", "bystander's p95 before, ms",
        "n during", "p95 during, ms", "ratio",
        "resources left", "disclosures", "aims missed",
    )  # fmt: skip
    for result in results:
        name = result.attack.name
        waits: list[Cell] = []
        for times in (result.calm.gaps_ms, result.attacked.gaps_ms):
            waits += [len(times), table.quantile(times, 0.95)]
        table.add(
            name.replace("_", " "), round(max(result.growth_mb.values()), 1),
            round(max(result.blocked_ms_max.values()), 1),
            round(max(result.lag_ms_max.values()), 1), round(result.calm_lag_ms_max, 1),
            *waits, ratio_cell(result.tail_ratio),
            sum(result.leaks.values()), result.strangers_words, len(result.misses),
        )  # fmt: skip
        run.samples(f"{name}, calm", result.calm.gaps_ms, unit="ms")
        run.samples(f"{name}, attacked", result.attacked.gaps_ms, unit="ms")
    table.note(
        "Memory growth: of the process that grew most. Loop lag: the longest that an event loop "
        "of the mesh was late, waiting for a core included, which its processes, the bystander "
        "and the attacker share; loop blocked: the longest that a loop's own thread computed at "
        "a stretch. Bystander: his waits for acceptance, first word and every next word. "
        "Resources: tasks, files, sessions and connections. Disclosures: times that another's "
        "text, drafts or counts were told. "
        "Honest clients chat as the bystander does; his ratio beside them is the yardstick for "
        "those under attack, and no aim holds for it."
    )
    run.figures |= {
        "by_attack": {result.attack.name: _figures(result) for result in results},
        "rss_growth_mb": round(max(max(o.growth_mb.values()) for o in results), 1),
        "loop_blocked_ms_max": round(max(max(o.blocked_ms_max.values()) for o in results), 1),
        "loop_lag_ms_max": round(max(max(o.lag_ms_max.values()) for o in results), 1),
        "bystander_p95_ratio": max(
            (o.tail_ratio or 0.0 for o in results if not o.attack.is_reference), default=0.0
        ),
        "honest_p95_ratio": {o.attack.name: o.tail_ratio for o in results if o.attack.is_reference},
        "leaks": sum(sum(o.leaks.values()) for o in results),
        "strangers_words": sum(o.strangers_words for o in results),
        "broken": [f"{o.attack.name}: {miss}" for o in results for miss in o.misses],
    }


def _figures(result: AttackResult) -> dict[str, Figure]:
    return {
        "rss_growth_mb": round(max(result.growth_mb.values()), 1),
        "bystander_p95_ratio": result.tail_ratio,
        "loop_blocked_ms_max": round(max(result.blocked_ms_max.values()), 1),
        "loop_lag_ms_max": round(max(result.lag_ms_max.values()), 1),
        "calm_loop_lag_ms_max": round(result.calm_lag_ms_max, 1),
        "leaks": dict(result.leaks),
        "strangers_words": result.strangers_words,
        "broken": result.misses,
        "done": dict(result.done),
    }


def chosen(arguments: argparse.Namespace) -> list[Attack]:
    """All attacks, or those that are named."""
    return [attack_of(name) for name in arguments.only] if arguments.only else list(ATTACKS)


def main() -> int:
    made = parser("hostile", __doc__ or "")
    names = [attack.name for attack in (*ATTACKS, *HTTP_ATTACKS)]
    made.add_argument("--only", nargs="*", choices=names, default=[], metavar="ATTACK",
                      help=f"of {', '.join(names)}")  # fmt: skip
    made.add_argument(
        "--http",
        action="store_true",
        help="those on the HTTP door, and no others: "
        "10,000 requests over HTTP/1.1, HTTP/2 and HTTP/3; a record of its own",
    )
    made.add_argument("--engine", default="", help="openvino, or fake, which --quick takes")
    made.add_argument("--seconds", type=float, default=0.0, help="of each attack")
    arguments = made.parse_args()
    if arguments.http:
        is_fake = (arguments.engine or ("fake" if arguments.quick else "openvino")) == "fake"
        warm_up = (5.0, 0) if is_fake else (WARM_UP_S, FILL_TOKENS)
        return door.main(arguments, SETTINGS, warm_up)
    run = start("hostile", arguments)
    seconds = arguments.seconds or (3.0 if run.quick else 4.0)
    engine = arguments.engine or ("fake" if run.quick else "openvino")
    run.setting("mesh", engine=engine, seconds=seconds, settings=SETTINGS)
    fill_tokens = FILL_TOKENS if engine == "openvino" else 0
    with local_mesh(engine=engine, regions="us-east", settings=SETTINGS) as mesh:
        results = asyncio.run(attacked(mesh, chosen(arguments), seconds, fill_tokens))
    report(run, results)
    run.finish()
    return int(bool(run.figures["broken"]))


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        raise SystemExit(main())
