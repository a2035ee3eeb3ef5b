"""How much of the event loop's time a coroutine takes: an address prefix has a share of it,
whatever it is used for (services.edge.limits.fair_queue)."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Generator
from types import coroutine
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


@coroutine
def billed(
    work: Coroutine[Any, Any, ResultT],
    bill: Callable[[float], None],
    while_: Callable[[], bool] = lambda: True,
) -> Generator[Any, Any, ResultT]:
    """Await `work`, and tell `bill` how many seconds each of its steps took while `while_` holds:
    in the thread's own time, so that what other processes take of the core is not charged."""
    error: BaseException | None = None
    try:
        while True:
            began = time.thread_time() if while_() else None
            try:
                waited = work.send(None) if error is None else work.throw(error)
            except StopIteration as end:
                result: ResultT = end.value
                return result
            finally:
                if began is not None:
                    bill(time.thread_time() - began)
            error = None
            try:
                yield waited
            except BaseException as thrown:
                error = thrown
    finally:
        error = None  # or it and its traceback would hold each other until a collection
        work.close()
