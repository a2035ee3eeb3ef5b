"""`outrider drain`: one replica takes no new sessions, and its last ones end."""

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
_Undo = Annotated[bool, typer.Option("--undo", help="Let the replica take sessions again.")]
_Wait = Annotated[
    float,
    typer.Option(min=0, max=86_400, help="Seconds to wait for its last session to end."),
]
_Move = Annotated[
    bool,
    typer.Option("--move", help="Move its sessions to other replicas now, with their KV cache."),
]
_Force = Annotated[
    bool,
    typer.Option("--force", help="Drain it even if no other replica takes sessions for its model."),
]


def drain(
    replica: _Replica,
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
    """Take a replica out of service, so that its process can be stopped or replaced.

    No router sends it new sessions. Its running sessions end there or, with --move, continue on
    other replicas; the command returns when none is left. The replica stays drained until --undo or
    until its process restarts.
    """
    flags = (certificate, private_key, ca, trust_domain, plaintext)
    asked = router_choice.choose(state_dir, router, flags)
    _drain(asked.address, asked.tls, replica, timeout, undo=undo, move=move, force=force)


def _drain(
    address: str, tls: Tls, replica: str, timeout: float, *, undo: bool, move: bool, force: bool
) -> None:
    if undo and move:
        raise InvalidRequestError("give either --undo or --move")
    replicas = asyncio.run(ask(address, tls))["replicas"]
    check(replicas, replica, undo=undo, force=force)
    asyncio.run(_tell(address, tls, replica, undo=undo, move=move))
    if undo:
        print(f"{replica} takes sessions again")
        return
    _wait(lambda: asyncio.run(ask(address, tls))["replicas"], replica, timeout)
    print(f"{replica} is drained: no session is left there; it takes none until `--undo`")


def check(replicas: list[State], name: str, *, undo: bool, force: bool) -> None:
    """Raises InvalidRequestError for a name that is not there, and for the last replica of a
    model."""
    row = _row(replicas, name)
    others = [it for it in replicas if it["model"] == row["model"] and it["name"] != name]
    if not (undo or force or any(it["state"] == "READY" for it in others)):
        raise InvalidRequestError(
            f"no other replica takes sessions for {row['model'] or 'its model'}: new chats would "
            "be refused; start another one first, or give --force"
        )


def _row(replicas: list[State], name: str) -> State:
    for row in replicas:
        if row["name"] == name:
            return row
    known = ", ".join(it["name"] for it in replicas) or "none"
    raise InvalidRequestError(f"the router knows no replica {name!r}; it has {known}")


async def _tell(address: str, tls: Tls, replica: str, *, undo: bool, move: bool) -> None:
    # Imported here: `outrider --help` does without.
    import grpc.aio

    from outrider.rpc import from_rpc_error, make_channel
    from outrider.tls import Role
    from outrider.v1 import router_pb2, router_pb2_grpc

    asked = router_pb2.DrainReplicaRequest(replica=replica, undo=undo, move=move)
    async with make_channel(address, tls=tls, role=Role.ROUTER) as channel:
        stub: router_pb2_grpc.RouterServiceAsyncStub = router_pb2_grpc.RouterServiceStub(channel)
        try:
            await stub.DrainReplica(asked, timeout=_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error


def _wait(look: Callable[[], list[State]], name: str, timeout_s: float) -> None:
    """Until no session is left there. Raises DeadlineError, UnavailableError."""
    until = time.monotonic() + timeout_s
    told = -1
    while True:
        row = _row(look(), name)
        left = row["running_sessions"] + row["queued_sessions"]
        if row["state"] == "DRAINING" and not left:
            return
        if row["state"] == "DOWN":
            raise UnavailableError(f"{name} is down; its sessions continue elsewhere")
        if left and left != told:
            print(f"{name}: {_count(left)} left", file=sys.stderr, flush=True)
            told = left
        if time.monotonic() > until:
            raise DeadlineError(
                f"{_count(left)} left on {name} after {timeout_s:g} s, and it takes no new ones; "
                "wait again with the same command, or stop its process, and they continue "
                "elsewhere with the same text"
            )
        time.sleep(_POLL_S)


def _count(sessions: int) -> str:
    return "1 session" if sessions == 1 else f"{sessions} sessions"
