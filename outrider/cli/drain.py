"""`outrider drain`: one replica, or a region's, take no new sessions, and their last ones end."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import TYPE_CHECKING, Annotated, Final

import typer

from outrider.cli import operator, router_choice
from outrider.cli.local.state import StateDir
from outrider.cli.router_state import State, ask
from outrider.errors import DeadlineError, InvalidRequestError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from outrider.tls import Tls

_POLL_S: Final = 0.5
_TIMEOUT_S: Final = 10.0
"""The router asks the replica."""

_Replica = Annotated[
    str, typer.Argument(help="Name of the replica, as `outrider status` shows it.")
]
_Region = Annotated[str, typer.Option(help="Drain all replicas of this region instead of one.")]
_Undo = Annotated[bool, typer.Option("--undo", help="Let them take sessions again.")]
_Wait = Annotated[
    float,
    typer.Option(min=0, max=86_400, help="Seconds to wait for its last session to end."),
]
_Move = Annotated[
    bool,
    typer.Option("--move", help="Move the sessions to other replicas now, with their KV cache."),
]
_Force = Annotated[
    bool,
    typer.Option(
        "--force", help="Drain even if no other replica takes sessions for a model of theirs."
    ),
]


def drain(
    replica: _Replica = "",
    region: _Region = "",
    undo: _Undo = False,
    move: _Move = False,
    timeout: _Wait = 600.0,
    force: _Force = False,
    router: router_choice.Router = "",
    state_dir: StateDir = None,
    certificate: operator.Certificate = None,
    private_key: operator.PrivateKey = None,
    ca: operator.Ca = None,
    trust_domain: operator.TrustDomain = operator.TRUST_DOMAIN,
    plaintext: operator.Plaintext = False,
) -> None:
    """Take a replica, or a region, out of service, so that processes can be stopped or replaced.

    No router sends them new sessions. Running sessions end there or, with --move, continue on other
    replicas, of other regions where a region is drained; the command returns when none is left.
    Chats that may not leave the region are refused meanwhile. A replica stays drained until --undo
    or until its process restarts.
    """
    flags = (certificate, private_key, ca, trust_domain, plaintext)
    asked = router_choice.choose(state_dir, router, flags)
    if undo and move:
        raise InvalidRequestError("give either --undo or --move")
    replicas = asyncio.run(ask(asked.address, asked.tls))["replicas"]
    names = chosen(replicas, replica, region)
    check(replicas, names, undo=undo, force=force)
    asyncio.run(_tell(asked.address, asked.tls, names, undo=undo, move=move))
    if undo:
        print(f"{_named(names)} {'takes' if len(names) == 1 else 'take'} sessions again")
        return
    _wait(lambda: asyncio.run(ask(asked.address, asked.tls))["replicas"], names, timeout)
    if len(names) == 1:
        print(f"{names[0]} is drained: no session is left there; it takes none until `--undo`")
    else:
        print(f"{_named(names)} are drained: no session is left there, until `--undo` none comes")


def chosen(replicas: list[State], name: str, region: str) -> list[str]:
    """The named replica, or those of the region that are not down. Raises InvalidRequestError for
    names that are not there."""
    if bool(name) == bool(region):
        raise InvalidRequestError("name a replica, or a region with --region")
    if name:
        _row(replicas, name)
        return [name]
    here = [it for it in replicas if it["region"] == region]
    if not here:
        known = ", ".join(sorted({it["region"] for it in replicas})) or "none"
        raise InvalidRequestError(f"the router knows no region {region!r}; it has {known}")
    up = [it["name"] for it in here if it["state"] != "DOWN"]
    if not up:
        raise UnavailableError(f"all replicas of {region} are down; their sessions are elsewhere")
    return up


def check(replicas: list[State], names: list[str], *, undo: bool, force: bool) -> None:
    """Raises InvalidRequestError if no replica but these would take sessions for a model of
    theirs."""
    if undo or force:
        return
    for model in sorted({_row(replicas, name)["model"] for name in names}):
        others = [it for it in replicas if it["model"] == model and it["name"] not in names]
        if not any(it["state"] == "READY" for it in others):
            raise InvalidRequestError(
                f"no other replica takes sessions for {model or 'its model'}: new chats would be "
                "refused; start another one first, or give --force"
            )


def _row(replicas: list[State], name: str) -> State:
    for row in replicas:
        if row["name"] == name:
            return row
    known = ", ".join(it["name"] for it in replicas) or "none"
    raise InvalidRequestError(f"the router knows no replica {name!r}; it has {known}")


async def _tell(address: str, tls: Tls, names: list[str], *, undo: bool, move: bool) -> None:
    """All at once. Sessions move only when none of these takes new ones any more."""
    # Imported here: `outrider --help` does without.
    import grpc.aio

    from outrider.rpc import from_rpc_error, make_channel
    from outrider.tls import Role
    from outrider.v1 import router_pb2, router_pb2_grpc

    async with make_channel(address, tls=tls, role=Role.ROUTER) as channel:
        stub: router_pb2_grpc.RouterServiceAsyncStub = router_pb2_grpc.RouterServiceStub(channel)

        async def tell(name: str, moves: bool) -> None:
            asked = router_pb2.DrainReplicaRequest(replica=name, undo=undo, move=moves)
            await stub.DrainReplica(asked, timeout=_TIMEOUT_S)

        try:
            for moves in (False, True) if move and len(names) > 1 else (move,):
                await asyncio.gather(*(tell(name, moves) for name in names))
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error


def _wait(look: Callable[[], list[State]], names: list[str], timeout_s: float) -> None:
    """Until no session is left there. Raises DeadlineError, UnavailableError."""
    until = time.monotonic() + timeout_s
    told = -1
    while True:
        replicas = look()
        rows = [_row(replicas, name) for name in names]
        down = [row["name"] for row in rows if row["state"] == "DOWN"]
        if len(down) == len(rows):
            raise UnavailableError(f"{_named(down)}: down; the sessions continue elsewhere")
        up = [row for row in rows if row["state"] != "DOWN"]
        left = sum(row["running_sessions"] + row["queued_sessions"] for row in up)
        if not left and all(row["state"] == "DRAINING" for row in up):
            return
        if left and left != told:
            print(f"{_named(names)}: {_count(left)} left", file=sys.stderr, flush=True)
            told = left
        if time.monotonic() > until:
            raise DeadlineError(
                f"{_count(left)} left on {_named(names)} after {timeout_s:g} s, and no new ones "
                "come; wait again with the same command, or stop the process, and they continue "
                "elsewhere with the same text"
            )
        time.sleep(_POLL_S)


def _named(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{len(names)} replicas ({', '.join(names)})"


def _count(sessions: int) -> str:
    return "1 session" if sessions == 1 else f"{sessions} sessions"
