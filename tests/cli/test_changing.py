"""The steps of a change, their order, and that a step which fails takes all of them back."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from outrider.cli.local import changes, mesh
from outrider.cli.local.changes import Definitions
from outrider.cli.local.changing import Changing
from outrider.cli.local.mesh import MeshOptions, ProcessSpec, ServedModel
from outrider.errors import ConfigError, DeadlineError, OutriderError, UnavailableError
from outrider.process import Ports
from outrider.testing import eventually

OPTIONS = MeshOptions(
    (ServedModel("a"), ServedModel("b")),
    regions=("here",),
    definitions={"b": {"source": "file:/b"}},
)
ADDED = ServedModel("c")
TABLES = {"c": {"source": "file:/c"}}


@dataclass(eq=False)
class Process:
    spec: ProcessSpec
    ports: Ports
    log: Path = Path("a.log")


@dataclass
class Processes:
    """A supervisor whose processes take at once what they are told. It notes every step."""

    options: MeshOptions = OPTIONS
    state_dir: Path = Path("state")
    steps: list[str] = field(default_factory=list)
    fails_at: str = ""
    waits_at: str = ""
    published: list[list[str]] = field(default_factory=list)
    definitions: dict[str, Definitions] = field(default_factory=dict)
    refuses: str = ""
    """The role of the process that refuses what it is told."""
    may_end: asyncio.Event | None = None
    """What processes wait for before they end; None: nothing."""

    def __post_init__(self) -> None:
        self._port = 7000
        replicas = mesh.replicas(self.options)
        self.children = [self._process(spec) for spec in replicas]
        self.children.append(self._process(mesh.tokenizer(self.options)))
        ports = {child.spec.name: child.ports.main for child in self.children}
        (router,) = mesh.routers(self.options, replicas, ports, ports["tokenizer"])
        self.children.append(self._process(router))
        (edge,) = mesh.edges(self.options, [self.children[-1].ports.main], self.state_dir)
        self.children.append(self._process(edge))
        self.sessions = dict.fromkeys((child.ports for child in self.children), 0)

    def _process(self, spec: ProcessSpec) -> Process:
        self._port += 1
        return Process(spec, Ports(self._port, self._port + 1000))

    def live(self) -> dict[str, dict[str, object]]:
        """What the services are told now."""
        return {
            child.spec.name: changes.live(child.spec)
            for child in self.children
            if child.spec.role != "inference"
        }

    def names(self) -> set[str]:
        return {child.spec.name for child in self.children}

    async def step(self, name: str) -> None:
        self.steps.append(name)
        if name == self.waits_at:
            await asyncio.Event().wait()
        if name == self.fails_at:
            raise UnavailableError(f"{name} failed")

    async def start_all(
        self, specs: Sequence[ProcessSpec], definitions: Definitions
    ) -> list[Process]:
        await self.step("start")
        started = [self._process(spec) for spec in specs]
        self.children = [*self.children, *started]
        self.sessions |= dict.fromkeys((child.ports for child in started), 0)
        return started

    def rewrite(self, child: Process, wanted: ProcessSpec, definitions: Definitions) -> None:
        self.steps.append(f"write {child.spec.role}")
        if self.fails_at == self.steps[-1]:
            raise OSError("no space left")
        live = changes.live(wanted)
        child.spec = ProcessSpec(child.spec.name, child.spec.role, {**child.spec.values, **live})
        self.definitions[child.spec.role] = definitions

    async def end(self, names: Collection[str]) -> None:
        self.steps.append(f"end {len(names)}")
        if self.may_end is not None:
            await self.may_end.wait()
        self.children = [child for child in self.children if child.spec.name not in names]

    def config_file(self, name: str) -> Path:
        return Path(f"{name}.toml")

    def publish(self) -> None:
        self.published.append([model.name for model in self.options.models])

    # As `Asking`.

    async def serves(self, role: str, ports: Ports, model: str) -> int:
        (child,) = [it for it in self.children if it.ports == ports]
        values = child.spec.values
        if role == "router":
            rows = values["replicas"]
            assert isinstance(rows, tuple)
            found = [row["model"] for row in rows].count(model) * (role != self.refuses)
        else:
            names = values["models"]
            assert isinstance(names, tuple)
            found = int(model in names and role != self.refuses)
        await self.step(f"ask {role}")
        return found

    async def refused(self, ports: Ports, file: Path) -> str:
        (child,) = [it for it in self.children if it.ports == ports]
        assert file == Path(f"{child.spec.name}.toml")
        return "it has no such model" if child.spec.role == self.refuses else ""

    async def sessions_at(self, ports: Ports) -> int:
        await self.step("drain")
        return self.sessions[ports]


class Asks:
    def __init__(self, processes: Processes) -> None:
        self.serves = processes.serves
        self.refused = processes.refused
        self.sessions = processes.sessions_at


def changing(processes: Processes) -> Changing[Process]:
    return Changing(processes, Asks(processes))


def say(text: str) -> None:
    """Nobody listens."""


async def test_replicas_are_there_before_anyone_is_told() -> None:
    it = Processes()
    await changing(it).add(ADDED, TABLES, say)
    assert it.steps == [
        *("start", "write tokenizer", "ask tokenizer", "write router", "ask router"),
        *("write edge", "ask edge"),
    ]
    assert it.published == [["a", "b", "c"]]
    assert "here-c-0" in it.names()
    assert it.live()["edge"] == {"models": ("a", "b", "c")}
    assert it.definitions["edge"] == {**OPTIONS.definitions, **TABLES}


async def test_nobody_is_told_any_more_before_replicas_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("outrider.cli.local.changing._QUIET_S", 0.01)
    it = Processes()
    await changing(it).remove("b", None, say)
    steps = [step for number, step in enumerate(it.steps) if step not in it.steps[:number]]
    assert steps == [
        *("write edge", "ask edge", "drain", "write router", "ask router"),
        *("write tokenizer", "ask tokenizer", "end 1"),
    ]
    assert it.published == [["a"]]
    assert "here-b-0" not in it.names()
    assert it.definitions["edge"] == {}


STEPS_OF_ADD = ("start", "ask tokenizer", "ask router", "ask edge")
STEPS_OF_REMOVE = ("ask edge", "drain", "ask router", "ask tokenizer")


def error_of(step: str) -> type[OutriderError]:
    """A process that is asked is asked again and again, until the time is up."""
    return DeadlineError if step.startswith("ask") else UnavailableError


def check_as_before(it: Processes) -> None:
    """Nothing of a change is left."""
    fresh = Processes()
    assert it.live() == fresh.live()
    assert it.names() == fresh.names()
    assert it.options == OPTIONS
    assert it.published in ([], [["a", "b"]])
    if it.definitions:
        assert set(map(str, it.definitions.values())) == {str(OPTIONS.definitions)}


@pytest.mark.parametrize("step", STEPS_OF_ADD)
async def test_a_failed_step_takes_an_addition_back(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outrider.cli.local.changing.TAKE_LIMIT_S", 0.01)
    it = Processes(fails_at=step)
    with pytest.raises(error_of(step), match=f"{step} failed"):
        await changing(it).add(ADDED, TABLES, say)
    check_as_before(it)


@pytest.mark.parametrize("role", ["tokenizer", "router", "edge"])
async def test_what_a_process_refuses_is_taken_back_at_once_and_told(role: str) -> None:
    it = Processes(refuses=role)
    with pytest.raises(ConfigError, match=f"the {role} did not take c: it has no such model"):
        await changing(it).add(ADDED, TABLES, say)
    assert it.steps.count(f"ask {role}") == 1
    check_as_before(it)


@pytest.mark.parametrize("step", STEPS_OF_REMOVE)
async def test_a_failed_step_takes_a_removal_back(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outrider.cli.local.changing.TAKE_LIMIT_S", 0.01)
    monkeypatch.setattr("outrider.cli.local.changing._QUIET_S", 0.01)
    it = Processes(fails_at=step)
    with pytest.raises(error_of(step), match=f"{step} failed"):
        await changing(it).remove("b", None, say)
    check_as_before(it)


@pytest.mark.parametrize("step", STEPS_OF_ADD)
async def test_who_gives_up_takes_an_addition_back(step: str) -> None:
    it = Processes(waits_at=step)
    task = asyncio.create_task(changing(it).add(ADDED, TABLES, say))
    await eventually(lambda: step in it.steps)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    check_as_before(it)


async def test_new_replicas_stop_even_if_no_file_can_be_written() -> None:
    it = Processes(fails_at="write tokenizer")
    with pytest.raises(OSError, match="no space"):
        await changing(it).add(ADDED, TABLES, say)
    assert it.names() == Processes().names()
    assert it.options == OPTIONS


async def test_who_gives_up_while_replicas_stop_leaves_none_half_stopped() -> None:
    it = Processes(may_end=asyncio.Event())
    assert it.may_end is not None
    task = asyncio.create_task(changing(it).remove("b", 0.0, say))
    await eventually(lambda: "end 1" in it.steps)
    task.cancel()
    # Everything that can run does before the processes end.
    for _ in range(10):
        await asyncio.sleep(0)
    assert not task.done()
    it.may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert "here-b-0" not in it.names()
    assert [model.name for model in it.options.models] == ["a"]
    assert it.published == [["a"]]


async def test_one_look_that_took_long_does_not_end_chats(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica that does not answer in time counts as one without chats, but not at once."""
    monkeypatch.setattr("outrider.cli.local.changing._QUIET_S", 1e-9)
    it, said = Processes(), list[str]()
    (replica,) = [child for child in it.children if child.spec.values.get("model") == "b"]
    counts = iter([0, 1, 0, 0])

    class Late(Asks):
        async def sessions_seen(self, ports: Ports) -> int:
            assert ports == replica.ports
            return next(counts)

    asks = Late(it)
    asks.sessions = asks.sessions_seen
    await Changing(it, asks).remove("b", None, said.append)
    assert "1 chat with it still to end" in said
    assert next(counts, None) is None


async def test_a_removal_waits_for_chats_unless_it_is_told_how_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("outrider.cli.local.changing._QUIET_S", 0.0)
    it = Processes()
    (replica,) = [child for child in it.children if child.spec.values.get("model") == "b"]
    it.sessions[replica.ports] = 2
    said = list[str]()
    waiting = asyncio.create_task(changing(it).remove("b", None, said.append))
    await eventually(lambda: "2 chats with it still to end" in said)
    assert not waiting.done()
    it.sessions[replica.ports] = 1
    await eventually(lambda: "1 chat with it still to end" in said)
    it.sessions[replica.ports] = 0
    await waiting

    again = Processes()
    (replica,) = [child for child in again.children if child.spec.values.get("model") == "b"]
    again.sessions[replica.ports] = 1
    await changing(again).remove("b", 0.0, say)
    assert "here-b-0" not in again.names()


async def test_what_cannot_be_changed_changes_nothing() -> None:
    it = Processes()
    with pytest.raises(ConfigError):
        await changing(it).add(ServedModel("a"), {}, say)
    with pytest.raises(ConfigError):
        await changing(it).remove("a", None, say)
    assert it.steps == []
