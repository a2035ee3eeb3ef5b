"""`outrider explain` before a real router."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from outrider.cli import explain
from outrider.errors import InvalidRequestError, UnavailableError, UnknownModelError
from outrider.testing import free_tcp_port
from outrider.v1 import router_pb2
from tests.cli.invoking import invoke
from tests.router.relay.mesh import opening
from tests.router.replica import Replica, routed


async def _asked(port: int, *flags: str) -> str:
    """What the command prints; it has an event loop of its own, so a thread."""
    arguments = ["explain", "--router", f"127.0.0.1:{port}", *flags]
    done = await asyncio.to_thread(invoke, arguments, catch_exceptions=False)
    return done.stdout


async def test_why_sessions_went_where_they_went() -> None:
    near, far = Replica("near"), Replica("far", "eu")
    async with routed(near, far) as router:
        for name in ("near", "far"):
            await router.state_of(name, router_pb2.REPLICA_STATE_READY)
        edge = router.edge()
        chosen = {}
        for number, name in ((1, "first"), (2, "second")):
            await edge.send(opening(number, request_id=name))
            hear = {asyncio.create_task(one.hear("open")): one.name for one in (near, far)}
            done, waiting = await asyncio.wait(hear, return_when=asyncio.FIRST_COMPLETED)
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            chosen[name] = hear[done.pop()]
        port = router.ports.main
        shown = await _asked(port)
        one = await _asked(port, "--request", "first")
        told = json.loads(await _asked(port, "--json", "--last", "1"))
        for flags in ((), ("--json",)):
            with pytest.raises(InvalidRequestError, match="knows no request 'nobody'"):
                await _asked(port, "--request", "nobody", *flags)
    heads = [line for line in shown.splitlines() if "prompt tokens for m" in line]
    assert [head.split(":")[0] for head in heads] == ["second", "first"], "newest first"
    assert "second" not in one
    row = next(line.split() for line in one.splitlines() if "chosen" in line)
    assert row[1] == chosen["first"]
    assert row[3] == near.identity.hex()[:8], "what it computes"
    assert "runner-up" in one and "margin" in one
    (placement,) = told["placements"]
    assert placement["request_id"] == "second"
    assert placement["chosen"]["replica"] == chosen["second"]


def test_what_cannot_be_asked_is_said_plainly() -> None:
    address = f"127.0.0.1:{free_tcp_port()}"
    failed = invoke(["explain", "--router", address])
    assert isinstance(failed.exception, UnavailableError)
    both = invoke(["explain", "a prompt", "--request", "x", "--router", address])
    assert isinstance(both.exception, InvalidRequestError)
    flags = ["--model", "./m.gguf", "--router", address]
    file = invoke(["explain", "a prompt", *flags])
    assert isinstance(file.exception, InvalidRequestError)
    assert "takes a name" in str(file.exception)


def test_a_file_is_asked_for_by_the_name_that_the_mesh_serves_it_under(tmp_path: Path) -> None:
    weights = tmp_path / "Some Model.gguf"
    weights.write_bytes(b"weights")
    config = tmp_path / "config" / "edge.toml"
    config.parent.mkdir()
    config.write_text(
        f'[edge]\nmodels = ["some-model"]\n[models.some-model]\nsource = "file:{weights}"\n',
        "utf-8",
    )
    for model in (str(weights), f"file:{weights}", "some-model"):
        assert explain._model_name(model, tmp_path, is_here=True) == "some-model"
    with pytest.raises(UnknownModelError, match="the mesh here serves some-model"):
        explain._model_name("file:/other.gguf", tmp_path, is_here=True)
    assert explain._model_name("m", tmp_path, is_here=False) == "m"
