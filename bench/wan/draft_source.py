"""Drafts of the published schemes: from the same drafter process that our edges use.

That is the process of `services.edge.drafter`, in which copies from the text and the draft model
compete, second guesses included. The published schemes ask for k drafts and wait, so chains end
only with the reply. Without a draft model it is the suffix automaton alone, as on our edges.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from outrider.models.vocabulary import Vocabulary
from outrider.sampling.params import SamplingParams
from outrider.speculation.suffix_drafter import SuffixDrafter
from outrider.telemetry.metrics import Metrics
from services.edge.drafter.link import DrafterLink
from services.edge.drafter.metrics import DrafterMetrics, DrafterState
from services.edge.drafter.settings import DrafterSettings
from services.edge.models.labels import ModelLabels
from services.edge.session.events import DrafterReport, OpenDrafter

PATIENCE_S = 2.0
"""A drafter that reports nothing for this long has no draft before the next commit."""
_LOAD_LIMIT_S = 300.0
_POLL_S = 0.1


class Source(Protocol):
    """Guesses at one reply."""

    def commit(self, ids: Sequence[int]) -> None:
        """These became final."""
        ...

    def draft_after(self, tentative: Sequence[int], least: int, most: int) -> Sequence[int] | None:
        """Guesses after the final ids and these: `least` to `most`, fewer where nothing further
        is known; None: not yet, wait for `changed`."""
        ...

    async def changed(self) -> None:
        """Until `draft_after` may say something else."""
        ...

    def close(self) -> None:
        """The reply is over."""
        ...


class SuffixSource:
    """The suffix automaton that our edges draft with."""

    def __init__(self, prompt: Sequence[int], min_survival: float = 0.2) -> None:
        self._drafter = SuffixDrafter()
        self._drafter.extend(prompt)
        self._min_survival = min_survival

    def commit(self, ids: Sequence[int]) -> None:
        self._drafter.extend(ids)

    def draft_after(self, tentative: Sequence[int], least: int, most: int) -> Sequence[int]:
        return self._drafter.draft_after(tentative, most, self._min_survival).ids

    async def changed(self) -> None:
        """Never asked for: it always has its answer."""

    def close(self) -> None:
        pass


class DrafterSource:
    """The chain of drafts that a drafter's process reports."""

    def __init__(self, link: DrafterLink, wanted: OpenDrafter, calls_ms: list[float]) -> None:
        """`calls_ms` is told what a call of the model takes, whenever it is heard."""
        self._link = link
        self._wanted = wanted
        self._calls_ms = calls_ms
        self._reply = list(wanted.reply)
        self._heard: DrafterReport | None = None
        self._news = asyncio.Event()
        self._gave_up = False
        self._number = link.open(wanted, self._hear)

    def commit(self, ids: Sequence[int]) -> None:
        self._reply += ids
        self._gave_up = False
        self._link.commit(self._number, ids, self._wanted.lead)

    def draft_after(self, tentative: Sequence[int], least: int, most: int) -> Sequence[int] | None:
        known = self._known()
        if self._gave_up or (known is not None and known[: len(tentative)] != tuple(tentative)):
            return ()
        if known is None:
            return None
        ids = known[len(tentative) :][:most]
        return ids if len(ids) >= least or self._is_whole(known) else None

    async def changed(self) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._news.wait()
        except TimeoutError:
            self._gave_up = True
        self._news.clear()

    def close(self) -> None:
        self._link.close(self._number)

    def _hear(self, heard: DrafterReport) -> None:
        self._heard = heard
        self._calls_ms.append(1000 * heard.draft_s)
        self._news.set()

    def _known(self) -> tuple[int, ...] | None:
        """The guesses behind what is final; None while the drafter has others in mind."""
        if self._heard is None:
            return None
        own = self._reply[self._heard.base :]
        agrees = self._heard.ids[: len(own)] == tuple(own)
        return self._heard.ids[len(own) :] if agrees else None

    def _is_whole(self, known: Sequence[int]) -> bool:
        """Whether the reply ends with these guesses."""
        ends = bool(known) and known[-1] in self._wanted.ends
        return ends or len(self._reply) + len(known) >= self._wanted.params.max_tokens


@dataclass(slots=True)
class Sources:
    """Makes the source of each reply."""

    ends: frozenset[int] = frozenset()
    """Ids that end a reply."""
    link: DrafterLink | None = None
    """None: there is no model."""
    calls_ms: list[float] = field(default_factory=list)
    """What calls of the model took, as heard since `take_calls_ms`."""

    @property
    def name(self) -> str:
        """What drafts."""
        return "suffix automaton" if self.link is None else "copies and draft model"

    def open(self, prompt: Sequence[int], sampling: SamplingParams, lead: int) -> Source:
        """Of a reply, whose drafts are at most `lead` ahead of what is final."""
        if self.link is None:
            return SuffixSource(prompt)
        wanted = OpenDrafter(tuple(prompt), (), sampling, self.ends, lead)
        return DrafterSource(self.link, wanted, self.calls_ms)

    def take_calls_ms(self) -> list[float]:
        """What was heard since it was last asked."""
        taken, self.calls_ms[:] = list(self.calls_ms), []
        return taken


@contextlib.asynccontextmanager
async def drafting(
    settings: DrafterSettings | None, vocabulary: Vocabulary
) -> AsyncIterator[Sources]:
    """Sources with a drafter of their own, set up as an edge's is; None: without. Raises
    TimeoutError if it does not come up."""
    sources = Sources(frozenset(vocabulary.stop_ids))
    if settings is None:
        yield sources
        return
    endless = replace(settings, limits=replace(settings.limits, min_survival=0.0))
    metrics = Metrics("bench")
    link = DrafterLink(
        endless, vocabulary.size, DrafterMetrics(ModelLabels(metrics), settings.model)
    )
    link.start()
    try:
        async with asyncio.timeout(_LOAD_LIMIT_S):
            await _settled(link)
        sources.link = link if link.state is DrafterState.READY else None
        yield sources
    finally:
        await link.stop()
        metrics.close()


async def _settled(link: DrafterLink) -> None:
    while True:
        if link.state in (DrafterState.READY, DrafterState.UNUSABLE):
            return
        await asyncio.sleep(_POLL_S)
