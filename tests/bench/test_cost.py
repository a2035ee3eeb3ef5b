"""What bench.cost measures with: an engine that counts what became final, processor time by thread,
and figures by role."""

from __future__ import annotations

import asyncio
import os
import threading
import time

import numpy as np

from bench.cost.__main__ import AIMS_US, ROLES, loads, meshes, report, tick_ms
from bench.cost.backend import Backend, token
from bench.cost.load import is_error
from bench.cost.measuring import Cost, Load, Window
from bench.harness import Run, processor_time
from bench.harness.http_client import HttpClient
from bench.harness.paced_engine import PacedEngine
from outrider.engines.base import SequenceSlice
from outrider.engines.fake import FakeOptions
from outrider.testing import free_tcp_port

ORDINARY = list(range(10, 60))


def engine(repetition: float = 0.0) -> PacedEngine:
    made = PacedEngine(ORDINARY, FakeOptions(vocabulary_size=64, num_blocks=1), 100)
    made.fixed_ms = 0.0
    made.repetition = repetition
    return made


def part(sequence: int, tokens: list[int], past: int, num_rows: int) -> SequenceSlice:
    return SequenceSlice(
        sequence, np.array(tokens, np.int32), past, np.arange(8, dtype=np.int32), num_rows
    )


def opened(made: PacedEngine, sequence: int, prompt: list[int]) -> None:
    made.open(sequence, np.array(prompt, np.int32))


def test_the_engine_counts_what_became_final() -> None:
    made = engine()
    opened(made, 1, [1, 2, 3])
    opened(made, 2, [4, 5])
    made.step([part(1, [1, 2], 0, 0), part(2, [4, 5], 0, 1)])  # 1 is not through its prompt
    made.step([part(1, [3], 2, 1), part(2, [20], 2, 1)])
    assert made.num_tokens == 1  # the first of 2
    made.step([part(1, [11], 3, 1), part(2, [21, 22, 23], 3, 3)])  # two drafts
    assert made.num_tokens == 3
    made.step([part(1, [12], 4, 1), part(2, [24], 6, 1)])  # both were right
    assert made.num_tokens == 7
    assert made.num_calls == 4 and made.thread == threading.get_native_id()


def test_its_text_is_the_chat_s_own_and_the_same_each_time() -> None:
    def text(prompt: list[int], repetition: float) -> list[int]:
        made, ids = engine(repetition), [prompt[-1]]
        opened(made, 1, prompt)
        for past in range(200):
            (rows,) = made.step([part(1, ids[-1:], past, 1)])
            assert rows.ids is not None and rows.ids.shape == rows.logits.shape == (1, 4)
            assert rows.logits[0].argmax() == 0
            ids.append(int(rows.ids[0, 0]))
        return ids[1:]

    one, other = text([1, 2, 3], 0.0), text([1, 2, 4], 0.0)
    assert one == text([1, 2, 3], 0.0) and one != other
    assert set(one) <= set(ORDINARY)
    # A call computes a row whatever else is in it.
    made, alone = engine(), engine()
    for target in (made, alone):
        opened(target, 1, [1, 2])
        opened(target, 2, [3, 4])
    both = made.step([part(1, [7], 5, 1), part(2, [8, 9], 6, 2)])
    (second,) = alone.step([part(2, [8, 9], 6, 2)])
    assert both[1].ids is not None and second.ids is not None
    assert (both[1].ids == second.ids).all()
    assert len(set(zip(text([1], 0.9), text([1], 0.9)[1:], strict=False))) < 60


def test_processor_time_is_counted_by_thread() -> None:
    before = processor_time.of_threads(os.getpid())
    until = time.thread_time() + 0.05
    while time.thread_time() < until:
        pass
    after = processor_time.of_threads(os.getpid())
    own = threading.get_native_id()
    assert after[own] - before[own] >= 40e6
    assert processor_time.between(before, after) >= after[own] - before[own]
    assert processor_time.between({1: 5}, {1: 7, 2: 10}) == 12


def cost(load: Load, num_tokens: int = 1000) -> Cost:
    used = dict.fromkeys(ROLES, 100_000_000) | {"edge": 50_000_000}
    windows = [Window(2.0, num_tokens, 500, used) for _ in range(3)]
    return Cost(load, 10.0, windows, (10.0, 11.0))


def test_rows_are_by_load_and_columns_by_role() -> None:
    run = Run("cost", quick=True, command="python -m bench.cost")
    made = [cost(Load(1)), cost(Load(64)), cost(Load(64, provisional=True)), cost(Load(64, "http"))]
    report(run, made)
    table, beside = run.tables
    assert len(table.rows) == 4
    assert table.rows[0][2:6] == tuple(
        f"{us} ({us} to {us})" for us in ("100", "50.0", "100", "150")
    )
    ((*_, us, rate, _),) = beside.rows
    assert (us, rate) == ("150 (150 to 150)", 500.0), "edge and router together, over HTTP"
    assert set(AIMS_US) <= set(ROLES)


def test_loads_and_their_pace() -> None:
    labels = [(load.chats, load.label) for load in loads((1, 64))]
    assert len(labels) == len(set(labels)) == 10
    assert len(loads((1, 16))) == 6
    plain, *repeating = meshes(loads((1, 64)))
    assert len(plain) == 8 and [len(alone) for alone in repeating] == [1, 1]
    assert tick_ms(1) == 10.0 and tick_ms(1000) == 1250.0


def test_the_backend_streams_an_event_per_tick() -> None:
    async def streamed() -> list[bytes]:
        port = free_tcp_port()
        serving = asyncio.create_task(Backend(0.001).run(port))
        try:
            async with asyncio.timeout(30), HttpClient("127.0.0.1", port) as client:
                lines = []
                while True:
                    try:
                        async for line in client.lines(b"{}"):
                            lines.append(line)
                            if len(lines) == 10:
                                return lines
                    except ConnectionError:  # it does not listen yet
                        await asyncio.sleep(0.01)
        finally:
            serving.cancel()

    lines = asyncio.run(streamed())
    assert [line for line in lines if line] == [token(" token").split(b"\r\n")[1].rstrip()] * 5


def test_a_reply_that_speaks_of_an_error_is_none() -> None:
    assert not is_error(b'data: {"choices":[{"delta":{"content":"error"}}]}')
    assert not is_error(b'data: {"choices":[],"error":null}')
    assert is_error(b'data: {"error":{"message":"no room","type":"server_error"}}')
    assert is_error(b'data: {"object":"error","message":"no room"}')
