"""The attacks on the HTTP door: how many there are, what they send, what they note of answers."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator

import pytest
from hpack import Decoder

from bench.harness import Run
from bench.hostile.bystander import Waits
from bench.hostile.catalog import ATTACKS, HTTP_ATTACKS, attack_of
from bench.hostile.http import bodies, http1_attacks
from bench.hostile.http.catalog import NUM_REQUESTS
from bench.hostile.http.measuring import DoorResult
from bench.hostile.http.report import report
from bench.hostile.http.sending import Answer, Ration, crowd, note
from bench.hostile.http.wire1 import Asker, exchanges, head
from bench.hostile.http.wire2 import field, integer, section
from bench.hostile.target import Findings, Target

MADE = (
    *(http1_attacks.contradicting, http1_attacks.disguised, http1_attacks.damaged_bodies),
    *(http1_attacks.damaged_starts, http1_attacks.floods),
    *(bodies.deep, bodies.numbers, bodies.damaged, bodies.giant, bodies.fields),
    *(bodies.schemas, bodies.grammars, bodies.tools),
)


def target_at(port: int) -> Target:
    return Target("127.0.0.1", 0, "", {}, {}, "", http_port=port)


def result_of(name: str, **done: int) -> DoorResult:
    waits = {"native": Waits([10.0], ttft_ms=[9.0], itl_ms=[1.0]), "HTTP": Waits([10.0])}
    findings = Findings(done={key.replace("_", " "): times for key, times in done.items()})
    return DoorResult(
        attack_of(name), waits, waits, {"edge": 1.0}, 1.0, {"edge": 1.0}, {"edge": 1.0}, {},
        {"edge": 0.0}, 0, findings,
    )  # fmt: skip


@contextlib.asynccontextmanager
async def server(*answers: bytes) -> AsyncIterator[int]:
    """Answers each read of a connection with the next of these, then closes it; its port."""

    serving: set[asyncio.Task[None] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.current_task())
        with contextlib.suppress(OSError):
            for answer in answers:
                if not await reader.read(1 << 16):
                    break
                writer.write(answer)
                await writer.drain()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listening:
        yield listening.sockets[0].getsockname()[1]
    await asyncio.gather(*(task for task in serving if task is not None))


def test_ten_thousand_requests_are_sent_in_all() -> None:
    assert sum(attack.num_requests for attack in HTTP_ATTACKS) == NUM_REQUESTS == 10_000
    names = [attack.name for attack in (*ATTACKS, *HTTP_ATTACKS)]
    assert len(names) == len(set(names))
    assert all(attack.what for attack in HTTP_ATTACKS)


@pytest.mark.parametrize("made", MADE)
def test_every_run_sends_the_same(made: object) -> None:
    assert callable(made)
    cases = made()
    assert cases == made()
    assert all(len(case) for case in cases)


async def test_no_more_requests_are_sent_than_there_are() -> None:
    findings, sent = Findings(), list[int]()
    ration = Ration(20, time.monotonic() + 60, findings)

    async def send(number: int) -> None:
        await asyncio.sleep(0)
        sent.append(number)

    await crowd(ration, send)
    assert sorted(sent) == list(range(20)) and ration.num_left == 0
    assert findings.done == {"requests": 20}
    assert ration.take_up_to(5) == []


def test_nothing_is_sent_once_the_time_is_over() -> None:
    ration = Ration(20, time.monotonic() - 1, Findings())
    assert ration.take() is None and ration.num_left == 20


def test_answers_that_say_the_edge_failed_are_missed_aims() -> None:
    findings = Findings()
    for status in (200, 400, 501, 505, 500, 503, 500):
        note(findings, Answer(status))
    assert len(findings.broken) == 2 and findings.done["aims missed"] == 3
    assert findings.done["answered 500"] == 2
    note(findings, Answer(400, body=b"Traceback (most recent call last)"))
    assert "traceback" in findings.broken[-1]


async def test_answers_are_read_whole_and_told_apart() -> None:
    both = (
        b"HTTP/1.1 100 \r\n\r\nHTTP/1.1 400 \r\nX-Request-Id: a\r\nContent-Length: 2\r\n\r\nno"
        b"HTTP/1.1 200 \r\nx-request-id: b\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"3\r\nyes\r\n0\r\n\r\n"
    )
    async with server(both) as port:
        found = await exchanges(target_at(port), b"x", Findings(), last_id="b")
    assert found == [Answer(400, "a", b"no"), Answer(200, "b", b"yes")]


async def test_a_connection_that_ends_is_noted_and_another_is_opened() -> None:
    findings = Findings()
    ok = b"HTTP/1.1 200 \r\nContent-Length: 0\r\n\r\n"
    async with server(ok, b"") as port:
        asker = Asker(target_at(port), findings)
        data = head("GET / HTTP/1.1")
        told = [await asker.ask(data) for _ in range(3)]
        await asker.close()
    assert [None if it is None else it.status for it in told] == [200, None, 200]
    assert findings.done == {"answered 200": 2, "closed without an answer": 1}


def test_header_sections_of_http2_are_written_as_others_read_them() -> None:
    fields = ((b":path", b"/x"), (b"a", b"y" * 300), (b"b", b""))
    assert tuple(Decoder().decode(section(*fields), raw=True)) == fields
    # The examples of RFC 7541, section C.1.
    assert (integer(10, 5), integer(1337, 5), integer(42, 8)) == (b"\n", b"\x1f\x9a\n", b"*")
    again = field(b"x", b"y", indexed=True) + b"\xbe"
    assert list(Decoder().decode(again, raw=True)) == [(b"x", b"y")] * 2


def test_the_figures_tell_requests_answers_and_failures() -> None:
    run = Run("hostile_http", quick=True, command="")
    results = [
        result_of("deep_json", requests=5, answered_400=4, answered_500=1),
        result_of("damaged_heads", requests=3, answered_501=3),
    ]
    report(run, results, {"edge": [100.0, 101.0]})
    figures = run.figures
    assert (figures["requests"], figures["server_errors"], figures["not_implemented"]) == (8, 1, 3)
    assert figures["broken"] == []
    assert results[0].answers == {"answered 400": 4, "answered 500": 1}


def test_what_a_bystander_did_not_get_is_a_missed_aim() -> None:
    result = result_of("deep_json")
    silent = {name: Waits() for name in result.calm}
    missed = DoorResult(
        result.attack, result.calm, silent, {"edge": 80.0}, 1.0, {}, {}, {"edge tasks": 2},
        {"inference-1": 0.9}, 3, result.findings, ("router",),
    )  # fmt: skip
    assert math.isinf(missed.tail_ratio("HTTP") or 0.0)
    assert len(missed.misses) == 7
