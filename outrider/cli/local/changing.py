"""Changes of the models of a mesh that runs, step by step; if a step fails, all are taken back.

What a change consists of is decided in changes.py. Processes are started before anyone is told of
them, and stopped after nobody knows them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Generic, Protocol, TypeVar

from outrider.cli.local import changes, mesh
from outrider.cli.local.changes import Change, Definitions
from outrider.cli.local.mesh import MeshOptions, ProcessSpec, ServedModel
from outrider.cli.local.state import embeds
from outrider.errors import ConfigError, DeadlineError, OverloadedError, UnavailableError
from outrider.process import Ports

TAKE_LIMIT_S: Final = 120.0
"""A process that runs takes a change of its file sooner than this: an edge reads the vocabulary,
and a tokenizer tries its backends with it the first time."""
_POLL_S: Final = 0.1
_QUIET_S: Final = 1.0
"""Replicas without a chat for so long are done: one that was lost is opened again sooner."""

_NOT_YET: Final = (UnavailableError, DeadlineError, OverloadedError)
"""A process is started again, or loads what it was just told of."""

Say = Callable[[str], None]


class Process(Protocol):
    """A process of the mesh, as a change sees it."""

    spec: ProcessSpec
    ports: Ports
    log: Path


P = TypeVar("P", bound=Process)


class Processes(Protocol[P]):
    """The supervisor, as far as changes need it."""

    options: MeshOptions
    children: list[P]

    @property
    def state_dir(self) -> Path: ...

    async def start_all(self, specs: Sequence[ProcessSpec], definitions: Definitions) -> list[P]:
        """Start these, all or none, and wait until they are ready. Raises UnavailableError."""

    def config_file(self, name: str) -> Path:
        """Of a process."""

    def rewrite(self, child: P, wanted: ProcessSpec, definitions: Definitions) -> None:
        """Write a process's file anew, with the live keys as they are `wanted`."""

    async def end(self, names: Collection[str]) -> None:
        """Stop these for good."""

    def publish(self) -> None:
        """Record what the mesh consists of."""


class Asks(Protocol):
    """Asks processes what they serve."""

    async def serves(self, role: str, ports: Ports, model: str) -> int:
        """How many at this process: replicas ready for a router's chats, otherwise 1 or 0."""

    async def refused(self, ports: Ports, file: Path) -> str:
        """Why a process refuses what its configuration file holds now; "" if it does not, or has
        not read it yet."""

    async def sessions(self, ports: Ports) -> int:
        """Chats at a replica."""


class Changing(Generic[P]):
    """The changes of one mesh, one after the other."""

    def __init__(self, supervisor: Processes[P], asking: Asks) -> None:
        self._supervisor = supervisor
        self._asking = asking
        self._under_way = asyncio.Lock()

    @property
    def is_busy(self) -> bool:
        """Whether a change is under way."""
        return self._under_way.locked()

    async def add(self, model: ServedModel, definitions: Definitions, say: Say) -> None:
        """Serve one more model; returns when a chat with it would be answered. Raises ConfigError,
        UnavailableError; the mesh is then as it was."""
        async with self._under_way:
            supervisor = self._supervisor
            change = changes.added(supervisor.options, model, definitions, self._running())
            try:
                say(f"starting {_count(len(change.start), 'replica')} of {model.name}")
                await supervisor.start_all(change.start, change.after.definitions)
                is_tokenized = not embeds(model.name, change.after.definitions)
                for role in ("tokenizer", "router", "edge"):
                    self._rewrite(role, change.after, self._replicas())
                    if role == "tokenizer" and not is_tokenized:
                        continue
                    say(f"the {role} takes it")
                    await self._until_serves(role, model.name, len(change.start))
            except BaseException:
                say("taking back what was done")
                await self._take_back(change)
                raise
            supervisor.options = change.after
            supervisor.publish()

    async def remove(self, name: str, drain_s: float | None, say: Say) -> None:
        """Serve a model no more, once its chats have ended, or after `drain_s` seconds. Raises
        ConfigError, UnknownModelError, UnavailableError; the mesh is then as it was."""
        async with self._under_way:
            supervisor = self._supervisor
            change = changes.removed(supervisor.options, name, self._running())
            try:
                self._rewrite("edge", change.after, self._replicas())
                say("the edge takes no new chat with it")
                await self._until_gone("edge", name)
                await self._until_quiet(change.stop, drain_s, say)
                staying = [it for it in self._replicas() if it.name not in change.stop]
                for role in ("router", "tokenizer"):
                    self._rewrite(role, change.after, staying)
                    await self._until_gone(role, name)
            except BaseException:
                say("taking back what was done")
                await self._take_back(change)
                raise
            supervisor.options = change.after
            say(f"stopping {_count(len(change.stop), 'replica')}")
            try:
                # There is no way back any more: who gives up now leaves no replica half stopped.
                await _to_its_end(supervisor.end(change.stop))
            finally:
                supervisor.publish()

    def _running(self) -> list[ProcessSpec]:
        return [child.spec for child in self._supervisor.children]

    def _replicas(self) -> list[ProcessSpec]:
        return changes.replicas(self._running())

    def _rewrite(self, role: str, options: MeshOptions, replicas: list[ProcessSpec]) -> None:
        supervisor = self._supervisor
        ports = self._ports()
        wanted = {
            "tokenizer": lambda: [mesh.tokenizer(options)],
            "router": lambda: mesh.routers(options, replicas, ports, ports["tokenizer"]),
            "edge": lambda: mesh.edges(options, [ports["router"]], supervisor.state_dir),
        }[role]()
        for spec in wanted:
            supervisor.rewrite(self._child(spec.name), spec, options.definitions)

    def _ports(self) -> dict[str, int]:
        return {child.spec.name: child.ports.main for child in self._supervisor.children}

    def _child(self, name: str) -> P:
        return next(it for it in self._supervisor.children if it.spec.name == name)

    async def _until_serves(self, role: str, model: str, num_replicas: int) -> None:
        async def is_there(child: P) -> bool:
            found = await self._asking.serves(role, child.ports, model)
            return found >= (num_replicas if role == "router" else 1)

        for child in self._of_role(role):
            problem = f"the {child.spec.name} did not take {model}"
            await self._until(partial(is_there, child), problem, child)

    async def _until_gone(self, role: str, model: str) -> None:
        async def is_gone(child: P) -> bool:
            return not await self._asking.serves(role, child.ports, model)

        for child in self._of_role(role):
            problem = f"the {child.spec.name} did not let go of {model}"
            await self._until(partial(is_gone, child), problem, child)

    def _of_role(self, role: str) -> list[P]:
        return [child for child in self._supervisor.children if child.spec.role == role]

    async def _until(self, holds: Callable[[], Awaitable[bool]], problem: str, child: P) -> None:
        last = ""
        try:
            async with asyncio.timeout(TAKE_LIMIT_S):
                while True:
                    try:
                        if await holds():
                            return
                        last = ""
                    except _NOT_YET as error:
                        last = f" ({error.message})"
                    if refused := await self._refused(child):
                        raise ConfigError(f"{problem}: {refused}")
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise DeadlineError(
                f"{problem} within {TAKE_LIMIT_S:.0f} s{last}; see {child.log}"
            ) from None

    async def _refused(self, child: P) -> str:
        """Why a process does not take what it was told: waiting longer would not help."""
        file = self._supervisor.config_file(child.spec.name)
        return await self._asking.refused(child.ports, file)

    async def _until_quiet(self, names: tuple[str, ...], drain_s: float | None, say: Say) -> None:
        """Until these replicas have had no chat for a while, or time is up."""
        clock = asyncio.get_running_loop().time
        began = clock()
        quiet_since: float | None = None
        told = 0
        while True:
            counts = [await self._asking.sessions(self._child(name).ports) for name in names]
            now, count = clock(), sum(counts)
            if count:
                quiet_since = None
            elif quiet_since is None:
                # One look is not enough, however long it took: a replica that is late counts as one
                # without chats.
                quiet_since = now
            elif now - quiet_since >= _QUIET_S:
                return
            if drain_s is not None and now - began >= drain_s:
                return
            if count != told:
                told = count
                say(f"{_count(count, 'chat')} with it still to end")
            await asyncio.sleep(_POLL_S)

    async def _take_back(self, change: Change) -> None:
        """What was written says again what it said before; what was started is stopped."""
        new = {spec.name for spec in change.start}
        staying = [it for it in self._replicas() if it.name not in new]
        roles = ("edge", "router", "tokenizer") if change.start else ("tokenizer", "router", "edge")
        try:
            for role in roles:
                self._rewrite(role, change.before, staying)
        finally:  # where there is no room to write a file, the new replicas stop all the same
            await self._supervisor.end(new)
            self._supervisor.publish()


async def _to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """Wait for it even if the waiting is cancelled, which counts afterwards."""
    doing = asyncio.ensure_future(work)
    try:
        await asyncio.shield(doing)
    except asyncio.CancelledError:
        await asyncio.wait([doing])
        raise


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
