"""`python -m bench.hostile.attacker NAMES SECONDS TARGET`: attacks, one after the other, from a
process of its own, which leaves the cores to everybody else; prints what each found as JSON."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from bench.harness.processes import child
from bench.hostile.catalog import Attack, attack_of
from bench.hostile.target import Findings, Target

NICENESS: Final = 19
"""Of the attacker while others are timed: what it takes of the processors is to be the mesh's."""
_PATIENCE_S: Final = 60.0
"""An attack that goes on for so much longer than it should is ended."""
_MAX_S: Final = 16.0
"""An attack that has done nothing, for want of a turn on a busy machine, is made again and has
twice the time, up to this."""


async def attacked_by(
    target: Target, attacks: Sequence[Attack], seconds: float, niceness: int = NICENESS
) -> list[Findings]:
    """Make one attack after the other, from a process that is only theirs."""
    names = ",".join(attack.name for attack in attacks)
    command = (sys.executable, "-m", "bench.hostile.attacker", names, str(seconds), str(niceness))
    async with child(*command, target.to_json()) as process:
        lines = [await process.stdout.readline() for _ in attacks]
    died = Findings(broken=["the attack itself failed: it ended without a word"])
    return [Findings(**json.loads(line)) if line else died for line in lines]


def _attack(attack: Attack, seconds: float, target: Target) -> Findings:
    findings = Findings()

    async def run() -> None:
        async with asyncio.timeout(seconds + _PATIENCE_S):
            await attack.run(target, seconds, findings)

    try:
        asyncio.run(run())
    except Exception as error:
        # An attack that fails is no proof of anything: it is reported as what it is.
        traceback.print_exc()
        findings.broken.append(f"the attack itself failed: {type(error).__name__}: {error}")
    if findings.done or findings.broken or seconds >= _MAX_S:
        return findings
    return _attack(attack, 2 * seconds, target)


def main() -> int:
    names, seconds, niceness, target = sys.argv[1:5]
    os.nice(int(niceness))
    logging.disable(logging.CRITICAL)
    for name in names.split(","):
        findings = _attack(attack_of(name), float(seconds), Target.from_json(target))
        print(json.dumps(asdict(findings)), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
