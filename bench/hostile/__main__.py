"""Attacks a mesh of real processes in one way after the other while bystanders chat, and says what
each did to memory, event loops and the bystanders; and whether the time to the first word tells a
stranger what somebody else asked.

The first two rows are no attacks but further clients that chat as the bystanders do: what they cost
is the yardstick for the others. The attacker is a process of the lowest priority, so that what
bystanders lose is what the attack costs the services, not what it takes of the cores by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Sequence

from bench.harness import Run, parser, start
from bench.harness.local_mesh import LocalMesh, local_mesh, outrider
from bench.hostile import timing
from bench.hostile.bystander import NativeBystander, bystanding
from bench.hostile.catalog import ATTACKS, HTTP_ATTACKS, Attack, attack_of
from bench.hostile.measuring import AttackResult, measure, report
from bench.hostile.target import Target, target_of
from outrider.cli.local import development_key

SETTINGS = (
    "edge.quic.idle_timeout_s=3",
    "edge.resumption.window_s=3",
    *(f"edge.http.{name}_timeout_s=3" for name in ("idle", "body", "send")),
    "inference.kv_bytes=268435456",
    "inference.prepare_first=true",
)
"""Connections, chats and requests of clients that vanished or are slow are given up sooner than by
default, so that a run need not wait for it. The KV pool is so small that it can be filled before
the first attack (FILL_TOKENS), and models are compiled before that: either's memory, touched for
the first time, would look like an attack's. Nothing else is changed."""
FILL_TOKENS = 13_000
"""Prompt tokens before the first attack. The pool of SETTINGS has room for 11,650 tokens of
SmolLM2-135M: 23,040 bytes each (30 layers, 3 heads of 64 values for keys and values, bf16). The
fake engine has no pool to fill, and no room for such prompts."""


def hostile_target(mesh: LocalMesh) -> Target:
    """A mesh, and a key of the attacker's own: as any tenant has one."""
    made = outrider("keys", "create", "attacker", "--json", "--state-dir", str(mesh.state_dir))
    return target_of(mesh, json.loads(made.stdout)["key"])


async def attacked(
    run: Run, mesh: LocalMesh, attacks: Sequence[Attack], *, rounds: int, seconds: float, fake: bool
) -> None:
    """All attacks in every round, on one mesh, and what they did."""
    target, results = hostile_target(mesh), [AttackResult(attack) for attack in attacks]
    key = development_key.read(mesh.state_dir)
    async with bystanding(target, key, has_texts=bool(target.http_port)) as bystanders:
        native = bystanders["native"]
        assert isinstance(native, NativeBystander)
        await native.warm_up(*((5.0, 0) if fake else (20.0, FILL_TOKENS)))
        for turn in range(rounds):
            first = turn * len(results) // rounds
            for result in (*results[first:], *results[:first]):
                await measure(mesh, target, result, bystanders, seconds, calm_first=turn % 2 == 0)
                ratios = {name: round(it[-1], 2) for name, it in result.ratios.items()}
                said = "; ".join(result.misses(judges_times=False)) or "no aim missed"
                print(f"{turn + 1}: {result.attack.name}: p95 x {ratios}; {said}", flush=True)
        if len({one.text for one in bystanders.values() if one.text}) > 1:
            results[-1].findings.missed("the bystanders were told different texts")
    report(run, results)


async def _timed(run: Run, mesh: LocalMesh) -> None:
    """In calm."""
    found = await timing.compare(target_of(mesh))
    timing.report(run, found)
    run.figures["timing_broken"] = [*timing.misses(found)]


def main() -> int:
    made = parser("hostile", __doc__ or "")
    names = [attack.name for attack in (*ATTACKS, *HTTP_ATTACKS)]
    made.add_argument("--only", nargs="*", choices=names, default=[], metavar="ATTACK",
                      help=f"of {', '.join(names)}")  # fmt: skip
    made.add_argument("--http", action="store_true", help="those on the HTTP door, and no others")
    made.add_argument("--engine", default="", help="openvino, or fake, which --quick takes")
    made.add_argument("--seconds", type=float, default=0.0, help="of each attack in each round")
    arguments = made.parse_args()
    run = start("hostile_http" if arguments.http else "hostile", arguments)
    engine = arguments.engine or ("fake" if run.quick else "openvino")
    seconds, rounds = arguments.seconds or (2.0 if run.quick else 8.0), 1 if run.quick else 3
    attacks: Sequence[Attack] = HTTP_ATTACKS if arguments.http else ATTACKS
    if arguments.only:
        attacks = tuple(attack_of(name) for name in arguments.only)
    run.setting("mesh", engine=engine, seconds=seconds, rounds=rounds, settings=SETTINGS)
    with local_mesh(
        engine=engine, regions="us-east", settings=SETTINGS, http=arguments.http
    ) as mesh:
        asyncio.run(
            attacked(run, mesh, attacks, rounds=rounds, seconds=seconds, fake=engine == "fake")
        )
        if engine != "fake" and not (arguments.http or arguments.only):
            asyncio.run(_timed(run, mesh))
    run.finish()
    broken = [run.figures["broken"], run.figures.get("timing_broken")]
    return int(any(broken))


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        raise SystemExit(main())
