"""Whether the time that a refusal takes tells keys apart that are not good: unknown ones, ones with
a known id and a wrong secret, expired and revoked ones.

A mesh of real processes, a file of 1,000 keys, connections over HTTP and of the native protocol
by turns. Each round sends every key once, in random order; the difference to an unknown key's time
is taken within the round. A second unknown key is the yardstick: whatever differs no more than that
one is noise.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import random
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench.harness import Figure, Run, interval, median, median_interval, parser, quantile, start
from bench.harness.local_mesh import LocalMesh, local_mesh
from outrider.access import keys_file
from outrider.access.api_keys import ApiKey, assemble, digest_of, id_of
from outrider.cli.local.mesh import KEYS_FILE
from outrider.client.connection import ClientConnection
from outrider.client.link import EdgeAddress, dial
from outrider.codec.frames import FrameDecoder, encode_frame
from outrider.errors import OutriderError
from outrider.v1 import edge_pb2

SETTINGS = ("edge.anonymous=no", "edge.drafter.model=none")
YARDSTICK = "unknown, another"
_NUM_KEYS = 1000
_ROUNDS = 100
"""On one connection, which may open 1,000 streams at once."""
_WARM_UP = 20
"""Rounds before them that are not counted."""


@dataclass(slots=True)
class Samples:
    """Microseconds of each refusal, by kind of key, round by round."""

    took_us: dict[str, list[float]] = field(default_factory=dict)

    def differences(self, kind: str) -> list[float]:
        """To an unknown key's, within each round."""
        return [a - b for a, b in zip(self.took_us[kind], self.took_us["unknown"], strict=True)]


def new_key() -> str:
    """The text of a key that nobody has."""
    return assemble(secrets.token_hex(6), secrets.token_bytes(32))


def kinds(file: Path) -> dict[str, str]:
    """Keys of every kind, by kind, and "good"; those that are to be known are written."""
    good, expired, revoked = new_key(), new_key(), new_key()
    rows = [
        _row(good, "good"),
        _row(expired, "expired", expires=1.0),
        _row(revoked, "revoked", revoked=1.0),
    ]
    rows += [_row(new_key(), f"key-{number}") for number in range(_NUM_KEYS - len(rows))]
    random.Random(1).shuffle(rows)
    keys_file.change(file, lambda there: (*there, *rows))
    return {
        "unknown": new_key(),
        YARDSTICK: new_key(),
        "wrong secret": _wrong(good),
        "wrong secret of an expired key": _wrong(expired),
        "wrong secret of a revoked key": _wrong(revoked),
        "expired": expired,
        "revoked": revoked,
        "good": good,
    }


def _row(text: str, name: str, **fields: float) -> ApiKey:
    return ApiKey(id_of(text), name, digest_of(text), "bench", **fields)  # type: ignore[arg-type]


def _wrong(text: str) -> str:
    return text[:-1] + ("0" if text[-1] != "0" else "1")


async def measure(
    ask: Callable[[str], object], keys: Mapping[str, str], samples: Samples, rng: random.Random
) -> None:
    """`ask` sends a request with this key and returns, or awaits, once it was refused."""
    order = list(keys)
    for number in range(-_WARM_UP, _ROUNDS):
        rng.shuffle(order)
        for kind in order:
            began = time.perf_counter()
            asked = ask(keys[kind])
            if asyncio.iscoroutine(asked):
                await asked
            took_us = (time.perf_counter() - began) * 1e6
            if number >= 0:
                samples.took_us[kind].append(took_us)


class HttpDoor:
    """One connection that is kept."""

    def __init__(self, mesh: LocalMesh) -> None:
        row = mesh.state.service("edge")
        self._connection = http.client.HTTPConnection(mesh.state.host, row["http_port"])

    def status(self, key: str) -> int:
        """Of an answer to a request with this key."""
        headers = {"Authorization": f"Bearer {key}"}
        self._connection.request("GET", "/v1/models", headers=headers)
        answer = self._connection.getresponse()
        answer.read()
        return answer.status

    def refused(self, key: str) -> None:
        """Ask, and be refused."""
        assert self.status(key) == 401

    def await_keys(self, key: str) -> None:
        """Return once the edge knows this one."""
        while self.status(key) != 200:
            time.sleep(0.05)

    def close(self) -> None:
        """No more requests."""
        self._connection.close()


class _Answer:
    """Of one stream."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.ended = asyncio.Event()
        self._decoder = FrameDecoder()

    def received(self, data: bytes, end_stream: bool) -> None:
        self.frames += self._decoder.feed(data)
        if end_stream:
            self.ended.set()

    def failed(self, error: OutriderError) -> None:
        self.ended.set()


class NativeDoor:
    """One connection; each request has a stream of its own."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection

    async def refused(self, key: str) -> None:
        """Ask, and be refused."""
        frame = edge_pb2.ClientFrame()
        frame.chat.messages.add(role="user", content="hello")
        frame.chat.credential.key = key
        answer = _Answer()
        self._connection.open(answer, encode_frame(frame.SerializeToString()))
        await answer.ended.wait()
        told = edge_pb2.EdgeFrame.FromString(answer.frames[-1])
        assert told.error.reason == "UNAUTHENTICATED"


async def measured(mesh: LocalMesh, turns: int) -> dict[str, Samples]:
    """By door, which take turns."""
    keys = kinds(mesh.state_dir / KEYS_FILE)
    with contextlib.closing(HttpDoor(mesh)) as door:
        door.await_keys(keys.pop("good"))
    found = {name: Samples({kind: [] for kind in keys}) for name in ("HTTP/1.1", "native")}
    rng = random.Random(2)
    host, port = mesh.edge
    for _ in range(turns):
        with contextlib.closing(HttpDoor(mesh)) as over_http:
            await measure(over_http.refused, keys, found["HTTP/1.1"], rng)
        connection = await dial(EdgeAddress(host, port, mesh.ca), 5.0)
        try:
            await measure(NativeDoor(connection).refused, keys, found["native"], rng)
        finally:
            connection.shut()
    return found


def report(run: Run, by_door: Mapping[str, Samples]) -> None:
    """A row for each door and kind of key."""
    table = run.table(
        "Refusals of keys that are not good",
        *("door", "key", "median us", "from quartile", "to quartile"),
        "longer than an unknown key's, us (95 %)",
    )
    told_apart: list[Figure] = []
    for door, samples in by_door.items():
        noise = median_interval(samples.differences(YARDSTICK))
        for kind, took_us in samples.took_us.items():
            run.samples(f"{door}, {kind}", took_us, unit="us")
            longer = samples.differences(kind)
            low, high = median_interval(longer)
            quartiles = quantile(took_us, 0.25), quantile(took_us, 0.75)
            table.add(door, kind, median(took_us), *quartiles, interval(median(longer), low, high))
            if low > max(0.0, noise[1]) or high < min(0.0, noise[0]):
                told_apart.append([door, kind])
        run.figures[f"{door} median_us"] = {
            kind: round(median(took_us), 1) for kind, took_us in samples.took_us.items()
        }
        run.figures[f"{door} longer_us"] = {
            kind: [round(it, 2) for it in median_interval(samples.differences(kind))]
            for kind in samples.took_us
        }
    table.note(
        "A key is told apart where its interval lies outside the one of another unknown key, and "
        "holds no 0."
    )
    run.figures["told_apart"] = told_apart


def main() -> int:
    flags = parser("access", __doc__ or "")
    flags.add_argument("--turns", type=int, help="of 100 rounds; default 50, quick 3")
    arguments = flags.parse_args()
    run = start("access", arguments)
    turns = arguments.turns or (3 if run.quick else 50)
    with local_mesh(engine="fake", regions="here", http=True, settings=SETTINGS) as mesh:
        report(run, asyncio.run(measured(mesh, turns)))
    run.finish()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
