"""One damaged input through one parser."""

from __future__ import annotations

import re
import time
import traceback
from dataclasses import dataclass
from typing import Final

from outrider.errors import OutriderError
from tests.fuzz.mutating import Mutator
from tests.fuzz.targets import Target

SLOW_S: Final = 5.0
"""For at most 64 KiB: what takes so long on a machine under load holds a loop on any."""


@dataclass(frozen=True, slots=True)
class Broken:
    """A finding."""

    data: bytes
    kind: str
    """The same for findings that are most likely one."""
    what: str


def feed(target: Target, mutator: Mutator) -> Broken | None:
    """The next input, and what is wrong with the answer, if anything."""
    data = mutator.next()
    began = time.monotonic()
    try:
        answer = f"{target.parse(data)}"
    except OutriderError as error:
        answer = f"{error.reason} {error.message}"
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        kind = f"{type(error).__name__} at {at.filename}:{at.lineno}"
        return Broken(data, kind, f"{type(error).__name__} left the parser: {error} ({kind})")
    took_s = time.monotonic() - began
    if took_s > SLOW_S:
        return Broken(data, "slow", f"{len(data)} bytes took {took_s:.1f} s")
    mutator.answered(data, re.sub(r"\d+|'.*?'", "", answer)[:200])
    return None
