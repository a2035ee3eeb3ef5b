"""`outrider drain` before a real router and a replica that is told to drain."""

from __future__ import annotations

import asyncio

import pytest

from outrider.cli.drain import check, chosen
from outrider.errors import DeadlineError, InvalidRequestError, UnavailableError
from outrider.v1 import router_pb2
from tests.cli.invoking import invoke
from tests.router.replica import Replica, RouterUnderTest, routed


def _row(name: str, state: str = "READY", model: str = "m", region: str = "us") -> dict[str, str]:
    return {"name": name, "state": state, "model": model, "region": region}


def test_the_last_replica_of_a_model_is_drained_by_force_alone() -> None:
    rows = [_row("a"), _row("b", "DOWN"), _row("c", model="other")]
    with pytest.raises(InvalidRequestError, match="no other replica takes sessions for m"):
        check(rows, ["a"], undo=False, force=False)
    check(rows, ["a"], undo=False, force=True)
    check(rows, ["a"], undo=True, force=False)
    check([*rows, _row("d")], ["a"], undo=False, force=False)


def test_an_unknown_replica_is_named_with_those_there_are() -> None:
    with pytest.raises(InvalidRequestError, match=r"no replica 'x'; it has a, b"):
        chosen([_row("a"), _row("b")], "x", "")


def test_a_region_is_all_its_replicas_that_run() -> None:
    rows = [_row("a"), _row("b", "DOWN"), _row("c", "DRAINING"), _row("d", region="eu")]
    assert chosen(rows, "", "us") == ["a", "c"]
    with pytest.raises(InvalidRequestError, match=r"no region 'asia'; it has eu, us"):
        chosen(rows, "", "asia")
    with pytest.raises(UnavailableError, match="all replicas of us are down"):
        chosen([rows[1]], "", "us")
    for name, region in (("", ""), ("a", "us")):
        with pytest.raises(InvalidRequestError, match="name a replica, or a region"):
            chosen(rows, name, region)


def test_the_last_region_of_a_model_is_drained_by_force_alone() -> None:
    rows = [_row("a"), _row("b"), _row("c", model="other"), _row("d", model="other", region="eu")]
    with pytest.raises(InvalidRequestError, match="no other replica takes sessions for m"):
        check(rows, chosen(rows, "", "us"), undo=False, force=False)
    check([*rows, _row("e", region="eu")], chosen(rows, "", "us"), undo=False, force=False)


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


async def test_a_region_is_drained_and_sessions_move_only_once_all_of_it_drain() -> None:
    replicas = [Replica("one"), Replica("two"), Replica("far", "eu")]
    one, two, far = replicas
    async with routed(*replicas) as router:
        for name in ("one", "two", "far"):
            await router.state_of(name, router_pb2.REPLICA_STATE_READY)
        region = one.region
        output, error = await _run(router, "--region", region, "--move")
        assert error is None, error
        assert output == (
            "2 replicas (one, two) are drained: no session is left there, until `--undo` none "
            "comes\n"
        )
        assert [it.move for it in one.drains] == [it.move for it in two.drains] == [False, True]
        assert not far.drains
        output, error = await _run(router, "--region", region, "--undo")
        assert (output, error) == ("2 replicas (one, two) take sessions again\n", None)
        for name in ("one", "two"):
            await router.state_of(name, router_pb2.REPLICA_STATE_READY)


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
