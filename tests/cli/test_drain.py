"""`outrider drain` before a real router and a replica that is told to drain."""

from __future__ import annotations

import asyncio

import pytest

from outrider.cli.drain import check
from outrider.errors import DeadlineError, InvalidRequestError
from outrider.v1 import router_pb2
from tests.cli.invoking import invoke
from tests.router.replica import Replica, RouterUnderTest, routed


def _row(name: str, state: str = "READY", model: str = "m") -> dict[str, str]:
    return {"name": name, "state": state, "model": model}


def test_the_last_replica_of_a_model_is_drained_by_force_alone() -> None:
    rows = [_row("a"), _row("b", "DOWN"), _row("c", model="other")]
    with pytest.raises(InvalidRequestError, match="no other replica takes sessions for m"):
        check(rows, "a", undo=False, force=False)
    check(rows, "a", undo=False, force=True)
    check(rows, "a", undo=True, force=False)
    check([*rows, _row("d")], "a", undo=False, force=False)


def test_an_unknown_replica_is_named_with_those_there_are() -> None:
    with pytest.raises(InvalidRequestError, match=r"no replica 'x'; it has a, b"):
        check([_row("a"), _row("b")], "x", undo=False, force=False)


async def _run(router: RouterUnderTest, *arguments: str) -> tuple[str, BaseException | None]:
    """What the command prints, and its error; it has an event loop of its own, so a thread."""
    where = ("--router", f"127.0.0.1:{router.ports.main}", "--plaintext")
    done = await asyncio.to_thread(invoke, ["drain", *arguments, *where])
    return done.output, done.exception


async def test_a_replica_is_drained_and_taken_back() -> None:
    near, far = Replica("near"), Replica("far", "eu")
    async with routed(near, far) as router:
        for name in ("near", "far"):
            await router.state_of(name, router_pb2.REPLICA_STATE_READY)
        assert await _run(router, "near") == (
            "near is drained: no session is left there; it takes none until `--undo`\n",
            None,
        )
        assert await _run(router, "near", "--undo") == ("near takes sessions again\n", None)
        _, error = await _run(router, "near", "--undo", "--move")
        assert isinstance(error, InvalidRequestError)
        _, error = await _run(router, "near", "--move")
        assert error is None and [it.move for it in near.drains] == [False, False, True]
        await _run(router, "near", "--undo")
        await router.state_of("near", router_pb2.REPLICA_STATE_READY)


async def test_it_waits_no_longer_than_it_is_told_for_sessions_that_are_left() -> None:
    near, far = Busy("near"), Replica("far", "eu")
    async with routed(near, far) as router:
        for name in ("near", "far"):
            await router.state_of(name, router_pb2.REPLICA_STATE_READY)
        output, error = await _run(router, "near", "--timeout", "0")
        while not output:  # the first look may come before the replica's report
            output, error = await _run(router, "near", "--timeout", "0")
    assert output == "near: 3 sessions left\n"
    assert isinstance(error, DeadlineError)
    assert "3 sessions left on near" in error.message


class Busy(Replica):
    """It always has sessions."""

    def report(self, **load: object) -> None:
        """With two running and one queued."""
        super().report(**load, running_sessions=2, queued_sessions=1)
