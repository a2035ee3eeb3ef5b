"""`python -m bench.hostile.attacker NAMES SECONDS TARGET`: attacks, one after the other, from a
process of its own, which leaves the cores to everybody else; prints what each found as JSON."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import traceback
from dataclasses import asdict
from typing import Final

from bench.hostile.catalog import attack_of
from bench.hostile.target import Findings, Target

_NICENESS = 19
_PATIENCE_S = 60.0
"""An attack that goes on for so much longer than it should is ended."""


_MAX_S: Final = 16.0
"""An attack that has done nothing, for want of a turn on a busy machine, is made again and has
twice the time, up to this."""


async def _attack(name: str, seconds: float, target: Target) -> Findings:
    findings = Findings()
    try:
        async with asyncio.timeout(seconds + _PATIENCE_S):
            await attack_of(name).run(target, seconds, findings)
    except Exception as error:
        # An attack that fails is no proof of anything: it is reported as what it is.
        traceback.print_exc()
        findings.broken.append(f"the attack itself failed: {type(error).__name__}: {error}")
    return findings


def _attacked(name: str, seconds: float, target: Target) -> Findings:
    findings = asyncio.run(_attack(name, seconds, target))
    if findings.done or findings.broken or seconds >= _MAX_S:
        return findings
    return _attacked(name, 2 * seconds, target)


def main() -> int:
    names, seconds, target = sys.argv[1:4]
    os.nice(_NICENESS)
    logging.disable(logging.CRITICAL)
    for name in names.split(","):
        findings = _attacked(name, float(seconds), Target.from_json(target))
        print(json.dumps(asdict(findings)), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
