"""Follows one chat through a whole mesh, and prints which modules and functions it enters.

An edge, a router and a replica with the fake engine run in this process, on real sockets, and a
client chats with them (no tokenizer service: the edge tokenizes). Two stretches are followed:
opening a chat, from the client's request to the replica's first engine call, and one commit, from
one answer of the engine to the next (choosing the token, the next batch, relaying the token,
showing it, drafting ahead). Each is seen many times; a function counts if it is entered in more
than half of them.

What the mesh does without a chat (heartbeats, load reports, timers) is left out: the same mesh is
followed for as long while no chat is open, and a function counts only if it is called at least
every other time more often with a chat than without. The calls of an idle mesh are subtracted.

Only code of `services/` and `outrider/` is counted, without the client, the fake engine and what is
generated from the protos; a call is a call of a Python function, or the resumption of a coroutine.

    python -m tools.trace_chat            tables, a row per module, in the order of first entry
    python -m tools.trace_chat --json     and one line of JSON at the end
    python -m tools.trace_chat --check    fails if a module is entered that trace_chat.modules does
                                          not name, the file beside this one (in `make check`)
    python -m tools.trace_chat --record   writes that file anew, from five traces
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from types import CodeType, FrameType
from typing import Any, Final

from outrider.client import Client, Message, SamplingParams, connect
from outrider.engines.fake import FakeEngine
from outrider.models.catalog import DEFAULT_MODEL
from outrider.process import Ports
from services.edge import app as edge_app
from services.edge.config import EdgeConfig
from services.edge.drafter.settings import NO_DRAFT_MODEL, DrafterConfig
from services.inference import app as inference_app
from services.inference.config import InferenceConfig
from services.inference.scheduler.scheduler import Scheduler
from services.router import app as router_app
from services.router.config import RouterConfig
from services.router.fleet.entries import ReplicaConfig

SERVICES: Final = ("edge", "router", "inference")
NUM_OPENS: Final = 9
"""Chats whose opening is followed."""
NUM_COMMITS: Final = 60
"""Engine calls of one chat that are followed."""
_SKIPPED_COMMITS: Final = 10
"""The first of a chat are left out: its drafts have nothing to copy from yet."""
_NUM_PAUSES: Final = 10
_PAUSE_S: Final = 0.0015
"""Seconds of each of the _NUM_PAUSES pauses in an engine call; after each the event loop has had a
turn. A commit is thus through before the next one comes, on a busy machine too, and load reports,
every 50 ms while the load changes, are in fewer than half of the stretches."""
_PATIENCE_S: Final = 1.0
"""Longest wait for a turn of the event loop, which may be ending."""
NUM_IDLE: Final = 40
"""Stretches without a chat that are followed, each as long as the median opening or commit."""
_SETTLE_S: Final = 1.0
"""Pause between a chat and the first of them: its session is closed everywhere."""
_LEAST_EXCESS: Final = 0.5
"""Calls per stretch above those of an idle mesh from which on a function belongs to the chat."""
_ROOT: Final = Path(__file__).resolve().parent.parent
RECORDED: Final = Path(__file__).with_suffix(".modules")
"""Modules that an opening and a commit may enter: a line for each, `open` or `commit` before it."""
_NUM_TRACES: Final = 5
"""Traces to compare. The functions that timers enter beside a chat differ from trace to trace, on a
busy machine above all. Everything entered in any trace is recorded; only functions entered in all
of them count as new."""
_NOT_COUNTED: Final = (
    "outrider/client/",
    "outrider/v1/",
    "outrider/testing",
    "outrider/engines/fake",
)
_CLIENT: Final = "client"

_service: ContextVar[str] = ContextVar("service")
"""The service that a task or callback belongs to: they inherit it from what started them."""


@dataclass(frozen=True, slots=True)
class Function:
    """A function as one service entered it."""

    service: str
    module: str
    """Path from the root of the repository."""
    name: str


@dataclass(slots=True)
class Stretch:
    """One opening, one commit, or a time without either: calls by function, in the order of first
    entry."""

    calls: Counter[Function] = field(default_factory=Counter)
    began_at: float = field(default_factory=time.monotonic)
    ended_at: float = 0.0

    def end(self) -> None:
        """Calls from here on are not of this stretch."""
        self.ended_at = time.monotonic()


@dataclass(frozen=True, slots=True)
class Stretches:
    """All openings, or all commits."""

    chat: list[Stretch]
    idle: list[Stretch]
    """Times without a chat, each as long as the median of `chat`."""

    def functions(self) -> list[Function]:
        """Those of the chat, in the order of first entry (see the module's docstring)."""
        num_entered: Counter[Function] = Counter()
        places: dict[Function, list[int]] = defaultdict(list)
        for stretch in self.chat:
            for place, function in enumerate(stretch.calls):
                num_entered[function] += 1
                places[function].append(place)
        found = [
            it
            for it, count in num_entered.items()
            if count * 2 > len(self.chat)
            and _mean_calls(self.chat, it) - _mean_calls(self.idle, it) >= _LEAST_EXCESS
        ]
        return sorted(found, key=lambda it: median(places[it]))

    def num_calls(self, functions: Iterable[Function]) -> float:
        """Calls of these functions: the median of the stretches, less the mean of an idle mesh."""
        wanted = set(functions)
        calls = median(sum(it.calls[function] for function in wanted) for it in self.chat)
        return calls - round(sum(_mean_calls(self.idle, function) for function in wanted))


def _mean_calls(stretches: list[Stretch], function: Function) -> float:
    return sum(it.calls[function] for it in stretches) / max(1, len(stretches))


class Tracer:
    """A profile function for every thread of this process (sys.setprofile)."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.current: Stretch | None = None
        """The stretch in which calls are counted; None: they are not counted."""
        self.on_engine_call: Callable[[], None] | None = None
        """Called as an engine call begins."""
        self.on_answer: Callable[[], None] | None = None
        """Called as an engine call has its answer, before the scheduler takes it."""
        self._modules: dict[CodeType, str] = {}
        """Paths of code seen so far; empty: not counted."""

    def start(self) -> None:
        """Threads that run already are not followed."""
        threading.setprofile(self._event)
        sys.setprofile(self._event)

    def stop(self) -> None:
        """Follow nothing more; threads that run go on calling, at little cost."""
        self.current = None
        threading.setprofile(None)
        sys.setprofile(None)

    def _event(self, frame: FrameType, event: str, argument: object) -> None:
        if event != "call":
            return
        code = frame.f_code
        # Read once: the event loop's thread may have done with it while this one sleeps.
        if code is FakeEngine.step.__code__ and (begins := self.on_engine_call) is not None:
            self._let_through()
            begins()
        if code is Scheduler.verify.__code__ and (answers := self.on_answer) is not None:
            self._let_through()
            answers()
        stretch = self.current
        if stretch is None:
            return
        module = self._modules.get(code)
        if module is None:
            module = self._modules[code] = _module_of(code)
        if module and (service := _service_of(frame)) != _CLIENT:
            stretch.calls[Function(service, module, code.co_qualname)] += 1

    def _let_through(self) -> None:
        """Called by the model thread: wait until the event loop has done what it has to do."""
        for _ in range(_NUM_PAUSES):
            time.sleep(_PAUSE_S)
            had_turn = threading.Event()
            self._loop.call_soon_threadsafe(had_turn.set)
            had_turn.wait(_PATIENCE_S)


def _module_of(code: CodeType) -> str:
    """Path of the module that has this code; empty if the code is not to be counted."""
    path = Path(code.co_filename)
    if not path.is_relative_to(_ROOT):
        return ""
    module = path.relative_to(_ROOT).as_posix()
    if not module.startswith(("services/", "outrider/")) or module.startswith(_NOT_COUNTED):
        return ""
    # A class body or a comprehension is no call of a function.
    return "" if code.co_name.startswith("<") else module


def _service_of(frame: FrameType) -> str:
    """Service of a call: from its task; in a thread, from the code that called it."""
    if (service := _service.get(None)) is not None:
        return service
    caller: FrameType | None = frame
    while caller is not None:
        _, found, rest = caller.f_code.co_filename.partition("/services/")
        if found:
            return rest.partition("/")[0]
        caller = caller.f_back
    return "threads"


@dataclass(frozen=True, slots=True)
class Trace:
    """Calls counted while chats opened and committed."""

    opens: Stretches
    commits: Stretches

    def figures(self) -> dict[str, float]:
        """Medians and counts, for --json."""
        found: dict[str, float] = {}
        for name, stretches in self._by_name():
            functions = stretches.functions()
            found[f"modules_per_{name}"] = len({it.module for it in functions})
            found[f"functions_per_{name}"] = len({(it.module, it.name) for it in functions})
            found[f"calls_per_{name}"] = stretches.num_calls(functions)
        return found

    def modules(self) -> set[str]:
        """Lines of the file RECORDED."""
        return {
            f"{name} {function.module}"
            for name, stretches in self._by_name()
            for function in stretches.functions()
        }

    def _by_name(self) -> tuple[tuple[str, Stretches], ...]:
        return ("open", self.opens), ("commit", self.commits)


def traces() -> Iterator[Trace]:
    """The traces to compare, each made when it is asked for."""
    return (asyncio.run(trace()) for _ in range(_NUM_TRACES))


def not_recorded(traces: Iterable[Trace]) -> list[str]:
    """Modules that a chat enters in each of these traces and that the file RECORDED does not
    name."""
    recorded = RECORDED.read_text(encoding="utf-8").splitlines()
    found: set[str] | None = None
    for seen in traces:
        modules = seen.modules().difference(recorded)
        found = modules if found is None else found & modules
        if not found:
            break
    return sorted(found or ())


async def trace() -> Trace:
    """Run a mesh, chat with it, and follow that."""
    tracer = Tracer()
    tracer.start()
    try:
        with tempfile.TemporaryDirectory(prefix="outrider-trace-") as folder:
            async with asyncio.TaskGroup() as group:
                stop = asyncio.Event()
                try:
                    port = await _started(group, stop, Path(folder))
                    return await _chatted(tracer, port, Path(folder) / "tls" / "cert.pem")
                finally:
                    stop.set()
    finally:
        tracer.stop()


async def _started(group: asyncio.TaskGroup, stop: asyncio.Event, folder: Path) -> int:
    """Start all services, from the back to the front; the edge's UDP port."""
    quiet: dict[str, Any] = {"port": 0, "log_level": "error", "drain_s": 0.0}
    replica = await _serving(
        *(group, "inference", stop, inference_app.serve),
        InferenceConfig(engine="fake", replica="a", region="us", **quiet),
    )
    router = await _serving(
        *(group, "router", stop, router_app.serve),
        RouterConfig(
            replicas=(ReplicaConfig("a", "us", f"127.0.0.1:{replica}"),), region="us", **quiet
        ),
    )
    return await _serving(
        *(group, "edge", stop, edge_app.serve),
        EdgeConfig(
            routers=(f"127.0.0.1:{router}",),
            state_dir=folder,
            anonymous=True,
            drafter=DrafterConfig(model=NO_DRAFT_MODEL),
            **quiet,
        ),
    )


async def _serving(
    group: asyncio.TaskGroup,
    service: str,
    stop: asyncio.Event,
    serve: Callable[..., Coroutine[Any, Any, None]],
    config: object,
) -> int:
    ports: asyncio.Future[Ports] = asyncio.get_running_loop().create_future()
    before = _service.set(service)
    group.create_task(serve(config, ready=ports.set_result, stop=stop))
    _service.reset(before)
    return (await ports).main


async def _chatted(tracer: Tracer, port: int, ca: Path) -> Trace:
    _service.set(_CLIENT)
    commits: list[Stretch] = []
    async with connect("127.0.0.1", port, ca=ca) as client:
        prompts = (f"Tell me about the number {number}." for number in range(NUM_OPENS + 1))
        opens = [await _opening(tracer, client, prompt) for prompt in prompts]
        await _committing(tracer, client, commits)
        # The first chat fills caches and imports; the last commits may have no successor.
        opens, commits = opens[1:], commits[_SKIPPED_COMMITS:-2]
        await asyncio.sleep(_SETTLE_S)
        return Trace(
            Stretches(opens, await _idling(tracer, opens)),
            Stretches(commits, await _idling(tracer, commits)),
        )


async def _idling(tracer: Tracer, chat: list[Stretch]) -> list[Stretch]:
    """Follow the mesh without a chat; the client stays connected."""
    duration_s = median(it.ended_at - it.began_at for it in chat)
    idle: list[Stretch] = []
    for _ in range(NUM_IDLE):
        idle.append(Stretch())
        tracer.current = idle[-1]
        await asyncio.sleep(duration_s)
        tracer.current = None
        idle[-1].end()
    return idle


async def _opening(tracer: Tracer, client: Client, prompt: str) -> Stretch:
    stretch = Stretch()

    def engine_called() -> None:
        if tracer.current is not None:
            stretch.end()
        tracer.current = None

    tracer.on_engine_call = engine_called
    tracer.current = stretch
    sampling = SamplingParams(max_tokens=1, ignore_eos=True)
    async with client.chat([Message("user", prompt)], sampling=sampling) as chat:
        await chat.result()
    return stretch


async def _committing(tracer: Tracer, client: Client, commits: list[Stretch]) -> None:
    def answered() -> None:
        if commits:
            commits[-1].end()
        commits.append(Stretch())
        tracer.current = commits[-1]

    tracer.on_engine_call, tracer.on_answer = None, answered
    # Sampled text: few drafts prove right, so that a commit is a token or two.
    sampling = SamplingParams(max_tokens=4 * NUM_COMMITS, ignore_eos=True, temperature=1.0, seed=7)
    async with client.chat([Message("user", "Tell me a story.")], sampling=sampling) as chat:
        async for _ in chat:
            if len(commits) > NUM_COMMITS + _SKIPPED_COMMITS:
                break
    tracer.current, tracer.on_answer = None, None


def _print(title: str, stretches: Stretches) -> None:
    functions = stretches.functions()
    print(f"\n{title}")
    for service in sorted({it.service for it in functions}, key=_place):
        mine = [it for it in functions if it.service == service]
        modules = list(dict.fromkeys(it.module for it in mine))
        print(f"\n  {service}: {len(modules)} modules, {len(mine)} functions")
        for module in modules:
            names = [it for it in mine if it.module == module]
            calls = stretches.num_calls(names)
            print(f"    {module:<52} {len(names):>3} functions {calls:>6.0f} calls")


def _checked(found: list[str]) -> int:
    if found:
        print("A chat enters modules that it did not enter before:", *found, sep="\n  ")
        print(
            "A reader has to pass through each of them. If one earns its place, record it: "
            "python -m tools.trace_chat --record"
        )
    return 1 if found else 0


def _place(service: str) -> int:
    return SERVICES.index(service) if service in SERVICES else len(SERVICES)


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    options = argparse.ArgumentParser(prog="python -m tools.trace_chat", description=__doc__)
    options.formatter_class = argparse.RawDescriptionHelpFormatter
    what = options.add_mutually_exclusive_group()
    what.add_argument("--json", action="store_true", help="end with one line of JSON")
    what.add_argument("--check", action="store_true", help="fail if modules are entered anew")
    what.add_argument("--record", action="store_true", help="record the modules that are entered")
    asked = options.parse_args(arguments)
    # The model's vocabulary is fetched with the first start; its engine is not loaded.
    if asked.record:
        modules: set[str] = set().union(*(seen.modules() for seen in traces()))
        RECORDED.write_text("".join(f"{it}\n" for it in sorted(modules)), encoding="utf-8")
        return 0
    if asked.check:
        return _checked(not_recorded(traces()))
    seen = asyncio.run(trace())
    figures = seen.figures()
    _print(f"Opening a chat ({DEFAULT_MODEL.name}'s vocabulary, fake engine)", seen.opens)
    _print("One commit", seen.commits)
    print()
    for name, value in figures.items():
        print(f"{name.replace('_', ' '):<24}{value:g}")
    if asked.json:
        print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
