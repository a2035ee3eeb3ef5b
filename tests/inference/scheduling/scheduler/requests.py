"""Requests that the tests of the scheduler ask it for."""

from __future__ import annotations

from outrider.engines.fake import FakeOptions
from outrider.sampling.params import SamplingParams
from services.inference.scheduler.types import OpenRequest
from tests.inference.scheduling.driver import PROMPT

LONG = SamplingParams(max_tokens=40, ignore_eos=True)
OPTIONS = FakeOptions(min_rows=2, block_tokens=4, fixed_ms=8.0, row_ms=1.0)


def request(session: int = 1, prompt: tuple[int, ...] = PROMPT, **changes: object) -> OpenRequest:
    fields: dict[str, object] = {"sampling": LONG, "region_drafts": False}
    return OpenRequest(session, prompt, **(fields | changes))  # type: ignore[arg-type]


def prompts(count: int) -> list[tuple[int, ...]]:
    """Prompts without a common prefix."""
    return [(3 + number, *PROMPT) for number in range(count)]
