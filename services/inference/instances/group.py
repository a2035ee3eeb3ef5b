"""Several engine instances behind one session table: a model thread each, one placement."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial

from outrider.engines.base import Engine
from outrider.errors import EngineError, OutriderError, UnavailableError
from outrider.speculation.learnt import Learnt
from outrider.telemetry import names
from outrider.telemetry.metrics import Metrics
from services.inference.call_record import WorkRecord
from services.inference.instances.placement import InstancePlacement
from services.inference.kv_transfer import ExportedBlock, LoadBlocks
from services.inference.runner import ModelRunner, ModelTick
from services.inference.scheduler.scheduler import Scheduler
from services.inference.scheduler.types import Drafts, Event, Failed, OpenRequest, total_load


class InstanceGroup:
    """A ModelRunner for several instances. Its methods are the event loop's.

    If one instance breaks down the whole replica does: `problem` is set and no session is opened
    any more. Those on the other instances run on until the replica is stopped.
    """

    def __init__(
        self,
        instances: Sequence[tuple[Engine, Scheduler]],
        on_tick: Callable[[ModelTick], None],
        metrics: Metrics,
        *,
        clock: Callable[[], float] = time.monotonic,
        new_work: Callable[[], WorkRecord] = lambda: WorkRecord(None, 0),
    ) -> None:
        """Engines of one shape, each with a scheduler of the same limits. `on_tick` is called in
        the event loop; `clock` gives the seconds of all deadlines; `new_work` a record of what one
        engine works on."""
        first = instances[0][1]
        loads = [scheduler.load() for _, scheduler in instances]
        self._placement = InstancePlacement(first.limits, first.info.block_tokens, loads)
        self._on_tick = on_tick
        self._metrics = metrics
        self._num_over = 0
        self._runners = [
            ModelRunner(
                engine, scheduler, partial(self._take, number), clock=clock, work=new_work()
            )
            for number, (engine, scheduler) in enumerate(instances)
        ]

    @property
    def problem(self) -> str:
        """Why no session can be opened; empty if one can."""
        return next((runner.problem for runner in self._runners if runner.problem), "")

    @property
    def instances(self) -> tuple[ModelRunner, ...]:
        """Each for itself. A session that is opened with one of them directly is not placed; its
        events come with the ticks."""
        return tuple(self._runners)

    def start(self) -> None:
        """Begin. The running event loop gets the ticks."""
        for runner in self._runners:
            runner.start()

    async def stop(self) -> None:
        """End every thread after its current tick and close the engines; sessions left are
        lost."""
        await asyncio.gather(*(runner.stop() for runner in self._runners))

    def open(self, request: OpenRequest) -> None:
        """Hand a session to the instance where it will end first. Raises UnavailableError or
        OverloadedError; whatever is wrong with the request itself comes back as Failed."""
        if self.problem:
            raise UnavailableError(f"this replica takes no sessions: {self.problem}")
        instance = self._placement.place(request)
        try:
            self._hand(instance, request)
        except OutriderError:
            self._placement.forget(request.session_id)
            raise

    def draft(self, session: int, drafts: Drafts) -> bool:
        """Hand in an edge's drafts; False if they were dropped, which costs nothing but speed."""
        instance = self._placement.instance_of(session)
        return instance is not None and self._runners[instance].draft(session, drafts)

    def cancel(self, session: int) -> None:
        """End a session; Finished comes back unless it is gone already."""
        instance = self._placement.cancel(session)
        if instance is not None:
            self._runners[instance].cancel(session)

    def load_blocks(self, command: LoadBlocks) -> bool:
        """As ModelRunner.load_blocks, to the instance that has the session."""
        instance = self._placement.instance_of(command.session_id)
        return instance is not None and self._runners[instance].load_blocks(command)

    async def export_blocks(
        self, ids: tuple[int, ...], salt: bytes, indices: tuple[int, ...]
    ) -> list[tuple[int, bytes]]:
        """As ModelRunner.export_blocks, of the first instance that has any of them."""
        for runner in self._runners:
            if blocks := await runner.export_blocks(ids, salt, indices):
                return blocks
        return []

    async def export_named(self, hashes: tuple[bytes, ...]) -> list[ExportedBlock]:
        """As ModelRunner.export_named, of the first instance that has any of them."""
        for runner in self._runners:
            if blocks := await runner.export_named(hashes):
                return blocks
        return []

    async def take_learnt(self, instance: int) -> list[tuple[bytes, Learnt]]:
        """As ModelRunner.take_learnt, of one instance."""
        return await self._runners[instance].take_learnt()

    def _hand(self, instance: int, request: OpenRequest) -> None:
        self._runners[instance].open(request)
        self._metrics.counter(names.INSTANCE_SESSIONS).add(1, {names.INSTANCE: str(instance)})

    def _take(self, instance: int, tick: ModelTick) -> None:
        blocks = self._placement.report(instance, tick.load, tick.blocks)
        events = [event for event in tick.events if not self._moved(event)]
        if tick.over:
            self._num_over += 1
            events += self._lost(instance, tick.problem)
        for event in events:
            self._placement.take(event)
        self._on_tick(
            ModelTick(
                tuple(events),
                tick.load,
                tick.num_scheduled,
                tick.overhead_ms,
                blocks,
                self.problem,
                over=self._num_over == len(self._runners),
                total=total_load(self._placement.loads),
                busy_s=tick.busy_s,
                idle_s=tick.idle_s,
            )
        )

    def _moved(self, event: Event) -> bool:
        """Whether a session that an instance had no room for is with another one now."""
        if not isinstance(event, Failed):
            return False
        other = self._placement.place_again(event)
        if other is None:
            return False
        try:
            self._hand(*other)
        except OutriderError:
            return False
        return True

    def _lost(self, instance: int, problem: str) -> list[Event]:
        error = EngineError(f"{problem}; open the session on another replica")
        return [Failed(session, error) for session in self._placement.sessions_on(instance)]
