"""Event loop lag of the tokenizer service and of an edge, each a process of its own, and the
latency of short chats, under prompts of 100,000 tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from bench.harness import Run, quantile
from bench.harness.local_mesh import local_mesh
from bench.tokenizer import edge_load, service_load
from bench.tokenizer.watched_process import Watched, client, computing, watched

WARM_S = 1.0
LOADS = "none", "computation beside it", "full"


@dataclass(frozen=True, slots=True)
class Seen:
    """What one phase showed."""

    lag_ms: list[float]
    chat_ms: list[float]
    num_long: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Clients:
    """The client functions of a service; `more` are their arguments after the port."""

    short_chats: Callable[..., Any]
    long_prompts: Callable[..., Any]
    more: tuple[Any, ...] = ()


def measure(run: Run, backend: str) -> None:
    """Adds the table and figures; those without a name before them are of the worse process.

    The floor is what processes that compute, one for each core, and ask for nothing, do to the
    chat by being there: the rest is the prompts'."""
    table = run.table(
        "Event loop lag of a process and time to answer a chat of 20 tokens, ms: idle, beside two "
        "processes that only compute, and while prompts of 100,000 tokens keep it busy",
        "process",
        "load",
        "loop lag p50",
        "p99",
        "max",
        "chat p50",
        "p99",
        "prompts/s",
    )
    seconds = 3.0 if run.quick else 15.0
    worst = {"loop_lag_ms_p99": 0.0, "loop_lag_ms_max": 0.0, "short_chat_p99_ratio": 0.0}
    for name, phases in (
        ("tokenizer", _tokenizer(backend, seconds)),
        ("edge", _edge(backend, seconds)),
    ):
        for load, seen in zip(LOADS, phases, strict=True):
            lag, chat = seen.lag_ms, seen.chat_ms
            cells = quantile(lag, 0.5), table.quantile(lag, 0.99), max(lag)
            chats = quantile(chat, 0.5), table.quantile(chat, 0.99)
            table.add(name, load, *cells, *chats, seen.num_long / seen.seconds)
        idle, beside, full = phases
        unloaded = quantile(idle.chat_ms, 0.99)
        floor = quantile(beside.chat_ms, 0.99) / unloaded
        run.figures[f"{name}_short_chat_p99_floor"] = round(floor, 3)
        ratio = quantile(full.chat_ms, 0.99) / unloaded
        found = quantile(full.lag_ms, 0.99), max(full.lag_ms), ratio
        for key, value in zip(worst, found, strict=True):
            run.figures[f"{name}_{key}"] = round(value, 3)
            worst[key] = max(worst[key], round(value, 3))
    run.figures |= worst


def _tokenizer(backend: str, seconds: float) -> list[Seen]:
    with watched(service_load.serving, backend) as watching:
        return _all(watching, Clients(service_load.short_chats, service_load.long_prompts), seconds)


def _edge(backend: str, seconds: float) -> list[Seen]:
    with local_mesh(engine="fake", regions="us-east") as mesh:
        router = mesh.address(mesh.services("router")[0]["name"])
        with watched(edge_load.serving, backend, router, str(mesh.state_dir)) as watching:
            clients = Clients(edge_load.short_chats, edge_load.long_prompts, (str(mesh.ca),))
            return _all(watching, clients, seconds)


def _all(watching: Watched, clients: Clients, seconds: float) -> list[Seen]:
    port, more = watching.ports.main, clients.more
    _short(watching, clients, WARM_S)
    idle = _short(watching, clients, seconds)
    with client(computing, is_elsewhere=True) as one, client(computing, is_elsewhere=True) as other:
        one.recv()
        other.recv()
        beside = _short(watching, clients, seconds)
    with client(clients.long_prompts, port, *more[:1], is_elsewhere=True) as load:
        load.recv()
        _short(watching, clients, WARM_S)
        _drained(load)
        full = _short(watching, clients, seconds)
        num_long = _drained(load)
    return [idle, beside, Seen(full.lag_ms, full.chat_ms, num_long, seconds)]


def _short(watching: Watched, clients: Clients, seconds: float) -> Seen:
    with client(clients.short_chats, watching.ports.main, seconds, *clients.more) as chats:
        watching.begin()
        took_ms: list[float] = chats.recv()
    return Seen(watching.lag_ms(), took_ms, 0, seconds)


def _drained(pipe: Connection) -> int:
    count = 0
    while pipe.poll():
        pipe.recv()
        count += 1
    return count
