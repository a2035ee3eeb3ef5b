"""Jobs that stand and fall together."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, NoReturn


async def until_one_fails(*jobs: Coroutine[Any, Any, None]) -> NoReturn:
    """Run jobs until one raises, and raise that; at least one has to be endless.

    Not asyncio.TaskGroup: in Python 3.11 and 3.12 it swallows a cancellation that arrives while
    a failed job makes it stop the others.
    """
    tasks = [asyncio.create_task(job) for job in jobs]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    raise next(error for task in done if (error := task.exception()) is not None)
