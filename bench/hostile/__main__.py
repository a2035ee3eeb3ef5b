"""Attacks a mesh of real processes, one way after the other, while somebody chats, and says what
each did: to memory, to event loops, to the bystander, to what others said.

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

from bench.harness.figures import Figure, Run, parser, quantile, start
from bench.harness.local_mesh import LocalMesh, local_mesh
from bench.hostile.bystander import bystanding
from bench.hostile.catalog import ATTACKS, Attack, attack_of
from bench.hostile.measuring import Outcome, measure
from bench.hostile.target import target_of

SETTINGS = (
    *("edge.idle_timeout_s=3", "edge.resume_window_s=3"),
    *("inference.kv_bytes=268435456", "inference.prepare_first=true"),
)
"""What vanished clients leave is given up sooner than by default, so that a run need not wait for
it. The KV pool is so small that it can be filled before the first attack (FILL_TOKENS), and models
are compiled before that: either's memory, touched for the first time, would look like an attack's.
Nothing else is changed."""
FILL_TOKENS = 13_000
"""Prompts before the first attack. The pool of SETTINGS has room for 11,650 tokens of SmolLM2-135M:
23,040 bytes each (30 layers, 3 heads of 64 values for keys and values, bf16). With the fake engine
there is nothing to fill, and they do no harm."""
WARM_UP_S = 20.0


async def attacked(mesh: LocalMesh, attacks: Sequence[Attack], seconds: float) -> list[Outcome]:
    """All of them, one after the other, on one mesh."""
    target, outcomes = target_of(mesh), []
    async with bystanding(target) as bystander:
        await bystander.warm_up(WARM_UP_S, FILL_TOKENS)
        for attack in attacks:
            outcome = await measure(mesh, target, attack, bystander, seconds)
            outcomes.append(outcome)
            print(line(outcome), flush=True)
    return outcomes


def line(outcome: Outcome) -> str:
    """What came of one attack, for who watches."""
    said = "; ".join(outcome.misses) or "nothing broken"
    return (
        f"{outcome.attack.name}: grew {max(outcome.growth_mb.values()):.0f} MB, loop held "
        f"{max(outcome.held_ms_max.values()):.0f} ms, late {max(outcome.lag_ms_max.values()):.0f} "
        f"(calm {outcome.calm_lag_ms_max:.0f}), "
        f"bystander's p99 x {outcome.p99_ratio:.2f}; {said}; {json.dumps(outcome.done)}"
    )


def report(run: Run, outcomes: Sequence[Outcome]) -> None:
    """Table and figures."""
    table = run.table(
        "A mesh under attack", "attack", "process grew most, MB", "loop held at most, ms",
        "late at most, ms", "late in calm, ms", "bystander p99, calm, ms", "attacked, ms", "ratio",
        "left behind", "strangers' words", "broken",
    )  # fmt: skip
    for outcome in outcomes:
        name = outcome.attack.name
        p99s = [quantile(waits.gaps_ms, 0.99) for waits in (outcome.calm, outcome.attacked)]
        table.add(
            name.replace("_", " "), round(max(outcome.growth_mb.values()), 1),
            round(max(outcome.held_ms_max.values()), 1),
            round(max(outcome.lag_ms_max.values()), 1), round(outcome.calm_lag_ms_max, 1),
            *(round(p99, 1) for p99 in p99s), round(outcome.p99_ratio, 2),
            sum(outcome.leaks.values()), outcome.strangers_words, len(outcome.misses),
        )  # fmt: skip
        run.samples(f"{name}, calm", outcome.calm.gaps_ms, unit="ms")
        run.samples(f"{name}, attacked", outcome.attacked.gaps_ms, unit="ms")
    table.note(
        "Late at most: the longest that an event loop of the mesh was kept from its next turn, "
        "waiting for a core included, which its processes, the bystander and the attacker share; "
        "held: as far as the loop's thread computed meanwhile. Ratio: of the bystander's waits for "
        "acceptance, first word and every next word."
    )
    run.figures |= {
        "by_attack": {outcome.attack.name: _figures(outcome) for outcome in outcomes},
        "rss_growth_mb": round(max(max(o.growth_mb.values()) for o in outcomes), 1),
        "loop_held_ms_max": round(max(max(o.held_ms_max.values()) for o in outcomes), 1),
        "loop_lag_ms_max": round(max(max(o.lag_ms_max.values()) for o in outcomes), 1),
        "bystander_p99_ratio": round(max(o.p99_ratio for o in outcomes), 3),
        "leaks": sum(sum(o.leaks.values()) for o in outcomes),
        "strangers_words": sum(o.strangers_words for o in outcomes),
        "broken": [f"{o.attack.name}: {miss}" for o in outcomes for miss in o.misses],
    }


def _figures(outcome: Outcome) -> dict[str, Figure]:
    return {
        "rss_growth_mb": round(max(outcome.growth_mb.values()), 1),
        "bystander_p99_ratio": round(outcome.p99_ratio, 3),
        "loop_held_ms_max": round(max(outcome.held_ms_max.values()), 1),
        "loop_lag_ms_max": round(max(outcome.lag_ms_max.values()), 1),
        "calm_loop_lag_ms_max": round(outcome.calm_lag_ms_max, 1),
        "leaks": dict(outcome.leaks),
        "strangers_words": outcome.strangers_words,
        "broken": outcome.misses,
        "done": dict(outcome.done),
    }


def chosen(arguments: argparse.Namespace) -> list[Attack]:
    """All attacks, or those that are named."""
    return [attack_of(name) for name in arguments.only] if arguments.only else list(ATTACKS)


def main() -> int:
    made = parser("hostile", __doc__ or "")
    names = [attack.name for attack in ATTACKS]
    made.add_argument("--only", nargs="*", choices=names, default=[], metavar="ATTACK",
                      help=f"of {', '.join(names)}")  # fmt: skip
    made.add_argument("--engine", default="", help="openvino, or fake, which --quick takes")
    made.add_argument("--seconds", type=float, default=0.0, help="of each attack")
    arguments = made.parse_args()
    run = start("hostile", arguments)
    seconds = arguments.seconds or (3.0 if run.quick else 4.0)
    engine = arguments.engine or ("fake" if run.quick else "openvino")
    run.setting("mesh", engine=engine, seconds=seconds, settings=SETTINGS)
    with local_mesh(engine=engine, regions="us-east", settings=SETTINGS) as mesh:
        outcomes = asyncio.run(attacked(mesh, chosen(arguments), seconds))
    report(run, outcomes)
    run.finish()
    return int(bool(run.figures["broken"]))


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        raise SystemExit(main())
