"""The order of the runs of one request (pure).

A client that resumes its chat at another edge runs it again there, and the first edge may have been
cut off or stopped, not ended: it still has the earlier run, and opens it anew as soon as it can. So
every run has a number, and the later of two runs is the one with the higher number. The later run
is the one that the client reads; it takes the place of the earlier one, whichever came first.

The number is the time in seconds since 1970 at which the client asked, or one more than that of its
run before, if that is more. So it rises from one process of the client to the next, too, and within
a process whatever its clock does. It fits in 32 bits until 2106.
"""

from __future__ import annotations

import re
from typing import Final

from outrider.errors import DuplicateSessionError

UNKNOWN_RUN: Final = 0
"""Of a peer that numbers no runs: such a run counts as the latest."""
_MAX_RUN: Final = 2**32 - 1
_METADATA: Final = "later_run"
"""Where the error that refuses a run has the number of the later one."""
_NUMBER: Final = re.compile("[0-9]{1,10}")


def next_run(last: int, unix_s: float) -> int:
    """The number of a run that is asked for at `unix_s`, seconds since 1970; `last`: of the run of
    the same request before, or UNKNOWN_RUN."""
    return min(max(last + 1, int(unix_s)), _MAX_RUN)


def check_run(run: int, running: int) -> None:
    """Raises DuplicateSessionError if a run that is to be opened is earlier than the one of the
    same request that is under way."""
    if UNKNOWN_RUN < run < running:
        raise DuplicateSessionError(
            "a later run of this request is under way; read that one",
            metadata={_METADATA: str(running)},
        )


def replaced_error() -> DuplicateSessionError:
    """Why a run ends whose place another one took."""
    return DuplicateSessionError("the request was opened again, and continues there")


def later_run(error: DuplicateSessionError) -> int:
    """The number of the run for which another one was refused (`check_run`); UNKNOWN_RUN: it was
    not refused for this reason."""
    stated = error.metadata.get(_METADATA, "")
    return min(int(stated), _MAX_RUN) if _NUMBER.fullmatch(stated) else UNKNOWN_RUN
