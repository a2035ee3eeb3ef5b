"""Output of commands that check something: numbered lines, each failure with its fix."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one check."""

    ok: bool
    what: str
    fix: str = ""


def report(findings: Iterable[Finding], *, as_json: bool) -> int:
    """Print them as they come; the exit status: 1 if one failed."""
    failed = 0
    if as_json:
        found = list(findings)
        # What to do is told only where there is something to do.
        print(json.dumps([asdict(it) | {"fix": "" if it.ok else it.fix} for it in found]))
        return int(not all(it.ok for it in found))
    for number, finding in enumerate(findings, start=1):
        print(f"{number:>2}. {'ok  ' if finding.ok else 'FAIL'} {finding.what}", flush=True)
        if not finding.ok:
            failed += 1
            print(f"         {finding.fix}", flush=True)
    return int(bool(failed))
