"""What a user's program tries, one thing after the other."""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Api:
    """The API that it was pointed at."""

    url: str
    key: str
    model: str
    quic_port: int
    ca: str


def try_all(tries: Mapping[str, Callable[[Api], str]]) -> None:
    """Print a line of JSON for each. A try returns what it saw, and raises what is wrong."""
    told = json.loads(os.environ["OUTRIDER_JUDGED"])
    api = Api(**told)
    for what, attempt in tries.items():
        try:
            row = {"what": what, "result": "passed", "said": attempt(api)}
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            why = f"{type(error).__name__}: {error} (line {last.lineno} of {last.name})"
            row = {"what": what, "result": "failed", "said": why}
        print(json.dumps(row), flush=True)


def check(is_so: bool, otherwise: object) -> None:
    """Raises ValueError unless it is so."""
    if not is_so:
        raise ValueError(str(otherwise))
