"""A router whose configuration file changes: replicas come, go and change their addresses. Real
gRPC, and the file is swapped as a Kubernetes ConfigMap is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from outrider import config_following
from outrider.testing import eventually, leak_check
from outrider.v1 import inference_pb2, router_pb2
from tests.router.relay.mesh import accepted, commit, done, opening
from tests.router.replica import Replica, RouterUnderTest, running_replicas, running_router, started
from tests.service import refusal

READY = router_pb2.REPLICA_STATE_READY
DRAINING = router_pb2.REPLICA_STATE_DRAINING


class ConfigMap:
    """A folder that a kubelet keeps: its file leads through the symlink ..data."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._versions = count()
        self.file = folder / "router.toml"
        self.file.symlink_to("..data/router.toml")

    def publish(self, *replicas: Replica, **settings: str) -> None:
        """A file that names these replicas."""
        lines = ["[router]"]
        lines += [f'{key} = "{value}"' for key, value in settings.items()]
        for it in replicas:
            table = {"name": it.name, "region": it.region, "address": it.address}
            lines += ["[[router.replicas]]", *(f'{key} = "{table[key]}"' for key in table)]
        version = f"..{next(self._versions)}"
        (self._folder / version).mkdir()
        (self._folder / version / "router.toml").write_text("\n".join(lines))
        (self._folder / "..data_tmp").symlink_to(version)
        (self._folder / "..data_tmp").replace(self._folder / "..data")


@pytest.fixture
def config_map(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ConfigMap:
    monkeypatch.setattr(config_following, "POLL_S", 0.02)
    return ConfigMap(tmp_path)


@asynccontextmanager
async def following_router(
    config_map: ConfigMap,
    replica: Replica,
    *,
    others: tuple[Replica, ...] = (),
    default: str = "m",
    **settings: Any,
) -> AsyncIterator[RouterUnderTest]:
    """A router whose file names one replica; the others run too."""
    async with leak_check(), running_replicas(replica, *others):
        config_map.publish(replica, default_model=default)
        async with running_router(replica, file=config_map.file, **settings) as router:
            yield router


async def names(router: RouterUnderTest) -> set[str]:
    return set(await router.replicas())


async def becomes(router: RouterUnderTest, *expected: str) -> None:
    """Until the router has these replicas."""
    while await names(router) != set(expected):
        await asyncio.sleep(0.02)


async def explained(router: RouterUnderTest) -> None:
    """Until the router could place a session that names no model."""
    request = router_pb2.ExplainRequest(what_if=opening(model="").open)
    while True:
        with suppress(grpc.aio.AioRpcError):
            await router.stub.Explain(request)
            return


async def test_an_added_replica_is_connected_and_a_removed_one_drains(
    config_map: ConfigMap,
) -> None:
    near, far = Replica("near"), Replica("far")
    async with following_router(config_map, near, others=(far,)) as router:
        await router.state_of("near", READY)
        edge = router.edge()
        number = await started(edge, near)
        config_map.publish(far)
        await becomes(router, "near", "far")
        await router.state_of("near", DRAINING)
        await router.state_of("far", READY)
        await started(edge, far, 2)

        # What runs on the removed one ends there, and its link with it.
        near.say(commit(number, upto=2))
        near.say(done(number))
        await edge.hear("commit")
        await edge.hear("done")
        await becomes(router, "far")
        await eventually(lambda: near.num_streams == 0)


async def test_a_file_that_is_refused_is_told_to_who_wrote_it(config_map: ConfigMap) -> None:
    near = Replica("near")
    async with following_router(config_map, near) as router:
        await router.state_of("near", READY)
        config_map.publish(near, near)
        assert "near" in await refusal(router.ports, config_map.file)
        assert await names(router) == {"near"}


async def test_a_replica_that_is_named_again_while_it_drains_stays(config_map: ConfigMap) -> None:
    near = Replica("near")
    async with following_router(config_map, near) as router:
        await router.state_of("near", READY)
        edge = router.edge()
        await started(edge, near)
        config_map.publish()
        await router.state_of("near", DRAINING)
        config_map.publish(near)
        await router.state_of("near", READY)
        await started(edge, near, 2)
        assert near.num_streams == 1


async def test_of_a_changed_address_the_sessions_move_and_the_new_one_serves(
    config_map: ConfigMap,
) -> None:
    old, new = Replica("one"), Replica("one")
    async with following_router(config_map, old, others=(new,)) as router:
        await router.state_of("one", READY)
        edge = router.edge()
        await edge.send(opening())
        sent = await old.hear("open")
        old.say(accepted(sent.session))
        first = inference_pb2.Commit(id=5, upto=1)
        old.say(inference_pb2.SessionDown(session=sent.session, commit=first))
        await edge.hear("opened")
        await edge.hear("commit")
        config_map.publish(new)

        # drain_s is 0 here: the session goes on at the new address at once.
        moved = await new.hear("open")
        assert [resumed.payload for resumed in moved.open.resumed] == [b"\x05"]
        assert (await router.replicas())["one"].address == new.address
        await eventually(lambda: old.num_streams == 0)


async def test_the_default_model_is_followed(config_map: ConfigMap) -> None:
    near = Replica("near")
    async with following_router(config_map, near, default="nothing", default_model=None) as router:
        await router.state_of("near", READY)
        edge = router.edge()
        await edge.send(opening(1, model=""))
        refused = await edge.hear("error")
        assert "no replica serves model nothing; use one of m" in refused.error.message
        config_map.publish(near, default_model="m")
        await explained(router)
        await edge.send(opening(2, model=""))
        assert (await near.hear("open")).open.model == "m"


async def test_which_models_are_served_is_told_and_follows_the_file(
    config_map: ConfigMap,
) -> None:
    near, far = Replica("near"), Replica("far")
    far.model = "other"
    async with following_router(config_map, near, others=(far,), default_model=None) as router:
        await router.state_of("near", READY)
        config_map.publish(near, far, default_model="other")
        await becomes(router, "near", "far")
        await router.state_of("far", READY)
        told = await router.stub.ListModels(router_pb2.ListModelsRequest())
        assert told.default_model == "other"
        assert [it.model for it in told.models] == ["m", "other"]
        for fleet in told.models:
            assert list(fleet.vocabulary_digests) == [near.digest]
            assert [(it.region, it.ready_replicas) for it in fleet.regions] == [("us", 1)]
