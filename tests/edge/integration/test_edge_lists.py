"""The signed list of edges: handed out by edges, followed by clients that know its key."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from structlog.testing import capture_logs

from outrider.client import Client, Interrupted, ReconnectPolicy, Resumed, connect
from outrider.client.address import EdgeAddress
from outrider.client.known_edges import KnownEdges
from outrider.client.list_reader import ListReader
from outrider.durable_files import write_atomic
from outrider.edge_list import EdgeList, ListedEdge, key_text, sign
from outrider.errors import ConfigError, EdgeListError, UnavailableError
from outrider.models.vocabulary import Vocabulary
from outrider.testing import eventually
from services.edge.chat.edge_list import StoredList, list_followed
from services.edge.processes.share import share_of
from tests.edge.integration.running import REPLY, Running, running
from tests.edge.integration.trouble import ASK, raw, said, start, whole
from tests.mesh import EdgeUnderTest, running_edge

KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))
OTHER = Ed25519PrivateKey.from_private_bytes(b"\x01" * 32)
KEYS = [key_text(KEY.public_key())]
BRIEF = ReconnectPolicy(give_up_after_s=0.5, attempt_timeout_s=0.5)
LATER_S = 10_000


def signed(
    ports: Sequence[int], version: int = 1, key: Ed25519PrivateKey = KEY, ends_in_s: int = LATER_S
) -> bytes:
    edges = tuple(ListedEdge("127.0.0.1", port) for port in ports)
    return sign(EdgeList(edges, version, int(time.time()) + ends_in_s), key).encoded()


@asynccontextmanager
async def edge_with(mesh: Running, text: bytes, **settings: Any) -> AsyncIterator[EdgeUnderTest]:
    """Another edge of the same region, whose certificate and clients are those of `mesh`, with a
    list of edges."""
    file = mesh.config.state_dir / "edges.json"
    write_atomic(file, text)
    config = replace(mesh.config, edge_list=file, **settings)
    async with running_edge(config, mesh.load) as edge:
        yield edge


async def kill(edge: EdgeUnderTest) -> None:
    edge.fall_silent()
    await edge.edge.stop()


def ports_of(client: Client) -> list[int]:
    """Where the client would connect, in order."""
    return [it.port for it in client._link._edges.in_order(time.time())]


async def cut_off(mesh: Running, edge: EdgeUnderTest, client: Client) -> None:
    """The client's edge dies in the middle of a chat, and the client finds no other."""
    mesh.region.hold(6)
    chat = await start(client)
    await kill(edge)
    mesh.region.gate.set()
    with pytest.raises(UnavailableError):
        await chat.result()


async def test_a_chat_goes_on_at_an_edge_of_the_list_when_its_own_dies(mesh: Running) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as gone:
        gone.bind(("127.0.0.1", 0))
        listed = [gone.getsockname()[1], mesh.ports.main]
    async with edge_with(mesh, signed(listed)) as dying:
        own = dying.ports.main
        async with mesh.client(own, edge_list_keys=KEYS) as client:
            await eventually(lambda: ports_of(client) == [own, *listed])
            mesh.region.hold(6)
            chat = await start(client)
            await kill(dying)
            mesh.region.gate.set()
            events = [type(event) for event in await whole(chat)]
            assert events.count(Interrupted) == events.count(Resumed) == 1
            assert mesh.region.opened[-1].resume.count >= 3, "it was begun elsewhere"
            assert await said(client.chat(ASK)) == REPLY


async def test_a_client_without_the_key_knows_no_other_edge(mesh: Running) -> None:
    async with edge_with(mesh, signed([mesh.ports.main])) as dying:
        async with mesh.client(dying.ports.main, reconnect=BRIEF) as client:
            assert (await client.describe()).edge_list
            await cut_off(mesh, dying, client)


async def test_a_list_of_another_key_is_not_followed(
    mesh: Running, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "outrider.client")
    text = signed([mesh.ports.main], key=OTHER)
    async with edge_with(mesh, text) as dying:
        own = dying.ports.main
        async with mesh.client(own, edge_list_keys=KEYS, reconnect=BRIEF) as client:
            await eventually(lambda: "none of the keys" in caplog.text)
            assert ports_of(client) == [own]
            await cut_off(mesh, dying, client)


async def test_a_listed_edge_whose_certificate_is_not_trusted_is_not_used(
    mesh: Running, words: Vocabulary, tmp_path: Path
) -> None:
    async with running(words, tmp_path / "stranger") as stranger:
        async with edge_with(mesh, signed([stranger.ports.main])) as dying:
            own = dying.ports.main
            async with mesh.client(own, edge_list_keys=KEYS, reconnect=BRIEF) as client:
                await eventually(lambda: len(ports_of(client)) == 2)
                await cut_off(mesh, dying, client)
        assert not stranger.region.opened


async def test_a_kept_list_finds_an_edge_for_a_program_that_starts_again(
    mesh: Running, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "outrider.client")
    options: dict[str, Any] = {"edge_list_keys": KEYS, "edge_list_file": tmp_path / "known.json"}
    async with edge_with(mesh, signed([mesh.ports.main], version=5)) as dying:
        own = dying.ports.main
        async with mesh.client(own, **options):
            await eventually((tmp_path / "known.json").is_file)
    async with mesh.client(own, **options) as client:
        assert await said(client.chat(ASK)) == REPLY
    assert not caplog.records
    async with (
        edge_with(mesh, signed([1, 2], version=4)) as stale,
        mesh.client(stale.ports.main, **options) as client,
    ):
        await eventually(lambda: "it is an old one" in caplog.text)
        assert ports_of(client) == [stale.ports.main, mesh.ports.main]
    (tmp_path / "known.json").write_bytes(b"{}")
    async with mesh.client(**options) as client:
        assert "known.json is not used" in caplog.text
        assert ports_of(client) == [mesh.ports.main]


async def test_a_list_that_has_ended_is_not_followed(
    mesh: Running, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "outrider.client")
    async with (
        edge_with(mesh, signed([mesh.ports.main], ends_in_s=-1)) as edge,
        mesh.client(edge.ports.main, edge_list_keys=KEYS) as client,
    ):
        await eventually(lambda: "has ended" in caplog.text)
        assert ports_of(client) == [edge.ports.main]


async def test_listed_edges_are_measured_and_those_that_do_not_answer_come_last(
    mesh: Running,
) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as gone:
        gone.bind(("127.0.0.1", 0))
        nobody = gone.getsockname()[1]
    named = EdgeAddress("127.0.0.1", 1, mesh.ca)
    edges = KnownEdges([named], [KEY.public_key()])
    reader = ListReader(edges, measure_after_s=0.0)
    async with (
        edge_with(mesh, signed([nobody, mesh.ports.main])) as edge,
        raw(mesh) as elsewhere,
        edge.client() as client,
    ):
        reader.look(elsewhere)  # whose edge has no list
        reader.look(client._link.connection)
        await eventually(lambda: [it.port for it in edges.unmeasured(time.time())] == [nobody])
        order = [it.port for it in edges.in_order(time.time(), named)]
        assert order == [1, mesh.ports.main, nobody]
        reader.close()


async def test_an_edge_hands_its_list_to_whoever_asks(mesh: Running) -> None:
    text = signed([mesh.ports.main])
    async with edge_with(mesh, text, anonymous=False) as edge, edge.client(key="") as client:
        told = await client.describe()
        assert told.edge_list == text and not told.models
    async with mesh.client() as client:
        assert (await client.describe()).edge_list == b""


async def test_an_edge_hands_out_what_the_file_has_now(mesh: Running) -> None:
    first, second = signed([1], version=3), signed([1, 2], version=4)
    async with edge_with(mesh, first) as edge, edge.client() as client:
        assert (await client.describe()).edge_list == first
        ends = "outrider_edge_list_valid_until_timestamp_seconds"
        assert edge.sample(ends) > time.time()
        assert edge.config.edge_list is not None
        write_atomic(edge.config.edge_list, second)
        await eventually(lambda: edge.edge._description._edge_list == second)
        assert (await client.describe()).edge_list == second


async def test_a_file_that_is_damaged_or_older_changes_nothing(tmp_path: Path) -> None:
    file, taken = tmp_path / "edges.json", list[StoredList]()
    write_atomic(file, signed([1], version=3))
    with capture_logs() as logs:

        def refusals() -> list[str]:
            return [it["error"] for it in logs if it["event"] == "config_file_refused"]

        def more_than(number: int) -> bool:
            return len(refusals()) > number

        async with list_followed(file, taken.append, poll_s=0.01):
            for worse in (b"", b"{}", signed([1])[:-1], signed([9], version=2)):
                before = len(refusals())
                write_atomic(file, worse)
                await eventually(partial(more_than, before))
            assert "has version 2, and 3 is served" in refusals()[-1]
            file.unlink()
            await eventually(lambda: "cannot read" in refusals()[-1])
            assert len(taken) == 1
            write_atomic(file, signed([1, 2], version=4, ends_in_s=-1))
            await eventually(lambda: len(taken) == 2)
    assert [it["event"] for it in logs if "edge_list" in it["event"]] == [
        "edge_list",
        "edge_list_ended",
    ]


@pytest.mark.parametrize("text", [b"", b"{}", signed([1])[:-1]])
async def test_an_edge_does_not_start_with_a_damaged_list(text: bytes, mesh: Running) -> None:
    with pytest.raises(EdgeListError, match="edges"):
        async with edge_with(mesh, text):
            pass


async def test_an_edge_does_not_start_without_the_file_that_it_names(mesh: Running) -> None:
    config = replace(mesh.config, edge_list=mesh.config.state_dir / "none.json")
    with pytest.raises(ConfigError, match="cannot read"):
        async with running_edge(config, mesh.load):
            pass


def test_all_processes_of_an_edge_have_the_list(mesh: Running) -> None:
    config = replace(mesh.config, processes=2, edge_list=Path("edges.json"))
    assert {share_of(config, at).edge_list for at in range(2)} == {Path("edges.json")}


@pytest.mark.parametrize(
    "options",
    [
        {"edge_list_keys": KEYS[0]},
        {"edge_list_keys": ["ed25519:AAAA"]},
        {"edge_list_file": "known.json"},
    ],
)
async def test_keys_that_are_none_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        async with connect("127.0.0.1", 1, key="", **options):
            pass
