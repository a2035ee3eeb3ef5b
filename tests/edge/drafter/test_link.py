"""The edge's way to its drafter: real processes that behave well, badly, or not at all."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop
from gguf import GGUFWriter

from outrider.children import start_piped
from outrider.codec.frames import FrameDecoder, encode_frame
from outrider.errors import InsufficientMemoryError
from outrider.mirrors.config import MirrorConfig
from outrider.sampling.params import SamplingParams
from outrider.telemetry.metrics import Metrics
from outrider.testing import eventually, leak_check
from outrider.tls.config import TlsConfig
from services.edge.drafter import link as link_module
from services.edge.drafter.link import (
    FIRST_BACKOFF_S,
    MAX_BACKOFF_S,
    MAX_MEMORY_TRIES,
    DrafterLink,
    DrafterRestarts,
)
from services.edge.drafter.metrics import DROPPED, RESTARTS, STATE, DrafterMetrics, DrafterState
from services.edge.drafter.process import DRAFTER
from services.edge.drafter.protocol import (
    DrafterStats,
    DrafterUnusable,
    decode_from_drafter,
    encode,
)
from services.edge.drafter.settings import DrafterConfig, DrafterLimits, DrafterSettings
from services.edge.drafter.worker import unfit_for_ever
from services.edge.session.events import DrafterReport, OpenDrafter
from services.edge.telemetry.labels import ModelLabels
from tests.fidelity.models import Shape, weights, write
from tests.models.sentencepieces import add_vocabulary, trained

ODD = str(Path(__file__).with_name("odd_drafter.py"))
START_S = 30.0

Pause = Callable[[float], Awaitable[None]]


def wanted(*prompt: int) -> OpenDrafter:
    return OpenDrafter(prompt, (), SamplingParams(), frozenset({2}), 32)


class Linked:
    """A link to an odd drafter, and what was heard."""

    def __init__(self, link: DrafterLink, metrics: Metrics) -> None:
        self.link = link
        self.heard: list[DrafterReport] = []
        self._metrics = metrics

    def open(self, *prompt: int) -> int:
        return self.link.open(wanted(*prompt), self.heard.append)

    def sample(self, name: str) -> float:
        sample = self._metrics.registry.get_sample_value
        labels = {"model": "m"}
        return sample(name, labels) or sample(f"{name}_total", labels) or 0.0

    def is_shown(self, state: DrafterState) -> bool:
        labels = {"model": "m", "state": state.name.lower()}
        return self._metrics.registry.get_sample_value(STATE, labels) == 1.0


@asynccontextmanager
async def linked(
    *command: str, ready: bool = True, pause: Pause = asyncio.sleep
) -> AsyncIterator[Linked]:
    metrics = Metrics("edge")
    settings = DrafterSettings(model="no-such-model", log_level="error")
    link = DrafterLink(
        settings, 1000, DrafterMetrics(ModelLabels(metrics), "m"), command, sleep=pause
    )
    async with leak_check():
        link.start()
        try:
            if ready:
                await eventually(lambda: link.state is DrafterState.READY, timeout_s=START_S)
            yield Linked(link, metrics)
        finally:
            await link.stop()
            metrics.close()


def odd(how: str) -> tuple[str, ...]:
    return (sys.executable, ODD, how)


async def test_drafts_come_back_to_whoever_asked() -> None:
    async with linked(*odd("well")) as mesh:
        first, second = mesh.open(10, 20), mesh.open(30)
        await eventually(lambda: len(mesh.heard) == 2)
        assert {heard.ids for heard in mesh.heard} == {(11, 21), (31,)}
        mesh.link.commit(first, (7,), 4)
        await eventually(lambda: len(mesh.heard) == 3)
        assert mesh.heard[-1].base == 1 and mesh.heard[-1].ids == (8,)
        assert mesh.heard[-1].sources == ("model",)
        mesh.link.close(first)
        mesh.link.close(second)
        mesh.link.commit(second, (9,), 4)
        assert mesh.link.num_sessions == 0


async def test_chats_are_told_of_the_static_prefixes_that_are_for_them() -> None:
    metrics = Metrics("edge")
    allowed = [("acme",), ("*",), ("other", "acme")]
    link = DrafterLink(
        *(DrafterSettings(model="m"), 1000, DrafterMetrics(ModelLabels(metrics), "m")),
        prefix_tenants=allowed,
    )
    for tenant, prefixes in (("acme", (0, 1, 2)), ("other", (1, 2)), ("", (1,))):
        number = link.open(wanted(1), lambda _: None, tenant)
        assert link._sessions[number].opening(number).prefixes == prefixes
    metrics.close()


async def test_the_first_draft_has_as_long_as_prompts_were_seen_to_take() -> None:
    async with linked(*odd("well"), ready=False) as mesh:
        assert mesh.link.first_draft_s(100) is None, "it is not ready"
        await eventually(lambda: mesh.link.state is DrafterState.READY, timeout_s=START_S)
        short, long = mesh.link.first_draft_s(10), mesh.link.first_draft_s(100)
        assert short is not None and long is not None and short < long
        assert mesh.link.first_draft_s(10**6) == link_module.MAX_FIRST_DRAFT_S
        slow = encode(DrafterStats(1, 1, 1, 9, 9, 0, 0, 0, 0, 0, 0, 0, 1000, (0, 0, 0), (0, 0, 0)))
        mesh.link._received(encode_frame(slow))
        assert mesh.link.first_draft_s(100) == pytest.approx(2 * (0.1 + 0.01))


def test_on_the_loop_that_edges_run_on() -> None:
    async def ask() -> None:
        async with linked(*odd("well")) as mesh:
            mesh.open(10, 20)
            await eventually(lambda: bool(mesh.heard))
            assert mesh.link.pid is not None
            os.kill(mesh.link.pid, signal.SIGKILL)
            await eventually(lambda: mesh.sample(RESTARTS) == 1)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(ask())


async def test_ids_outside_the_vocabulary_are_not_passed_on() -> None:
    async with linked(*odd("well")) as mesh:
        mesh.open(999)
        mesh.open(500)
        await eventually(lambda: bool(mesh.heard))
        assert [heard.ids for heard in mesh.heard] == [(501,)]


async def test_sessions_opened_before_it_is_ready_are_told_then() -> None:
    async with linked(*odd("well"), ready=False) as mesh:
        number = mesh.open(10)
        mesh.link.commit(number, (20, 30), 4)
        assert mesh.sample(DROPPED) == 0
        await eventually(lambda: bool(mesh.heard), timeout_s=START_S)
        # All in one opening: what was final by then is not drafted.
        assert mesh.heard[0].base == 2 and mesh.heard[0].ids == (11,)


async def test_a_killed_one_is_started_again_and_told_all_that_is_open() -> None:
    async with linked(*odd("well")) as mesh:
        kept, closed = mesh.open(10), mesh.open(40)
        await eventually(lambda: len(mesh.heard) == 2)
        before = mesh.link.pid
        assert before is not None
        os.kill(before, signal.SIGKILL)
        await eventually(lambda: mesh.link.pid != before)
        mesh.link.commit(kept, (20,), 4)
        mesh.link.close(closed)
        mesh.heard.clear()
        await eventually(lambda: bool(mesh.heard), timeout_s=START_S)
        assert [(heard.base, heard.ids) for heard in mesh.heard] == [(1, (11,))]
        assert mesh.sample(RESTARTS) == 1


async def test_one_that_reads_nothing_costs_frames_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(link_module, "STUCK_S", 0.5)
    async with linked(*odd("deaf")) as mesh:
        before = mesh.link.pid
        number = mesh.open(*range(900))
        for _ in range(500):
            mesh.link.commit(number, tuple(range(900)), 4)
        child = mesh.link._process
        assert child is not None and child.pipe._transport is not None
        # Bounded by what may wait and one frame; the socket holds a little itself.
        assert child.pipe._transport.get_write_buffer_size() < (1 << 18) + 8000
        assert mesh.sample(DROPPED) > 0
        await eventually(lambda: mesh.link.pid != before, timeout_s=START_S)
        assert len(mesh.link._sessions[number].reply) == 500 * 900


async def test_prompts_that_cannot_be_sent_cost_the_loop_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with linked(*odd("deaf")) as mesh:
        while not mesh.sample(DROPPED):
            mesh.open(*range(900))
        encoded: list[object] = []
        monkeypatch.setattr(link_module, "encode", encoded.append)
        for _ in range(50):
            mesh.open(*range(900))
        mesh.link._send_missing()
        assert encoded == []


async def test_one_that_reads_but_says_nothing_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "STUCK_S", 0.5)
    async with linked(*odd("mute")) as mesh:
        before = mesh.link.pid
        mesh.open(10, 20)
        await eventually(lambda: mesh.link.pid not in (before, None), timeout_s=START_S)


async def test_one_that_was_slow_is_told_again_what_it_missed() -> None:
    async with linked(*odd("well")) as mesh:
        number = mesh.open(10)
        await eventually(lambda: bool(mesh.heard))
        assert mesh.link.pid is not None
        os.kill(mesh.link.pid, signal.SIGSTOP)
        gone = mesh.open(50)
        while not mesh.sample(DROPPED):
            mesh.link.commit(number, tuple(range(900)), 4)
        mesh.link.close(gone)
        os.kill(mesh.link.pid, signal.SIGCONT)
        total = len(mesh.link._sessions[number].reply)
        await eventually(lambda: mesh.heard[-1].base == total, timeout_s=START_S)
        assert mesh.sample(RESTARTS) == 0


async def test_one_that_babbles_is_replaced() -> None:
    async with linked(*odd("babbling"), ready=False) as mesh:
        await eventually(lambda: mesh.sample(RESTARTS) >= 1, timeout_s=START_S)


async def test_one_that_crashes_is_tried_again_less_and_less_often() -> None:
    waits: list[float] = []

    async def pause(seconds: float) -> None:
        waits.append(seconds)

    async with linked(*odd("crashing"), pause=pause) as mesh:
        mesh.open(1)
        await eventually(lambda: len(waits) >= 4, timeout_s=START_S)
        assert mesh.sample(RESTARTS) >= 4
    for number, wait_s in enumerate(waits[:4]):
        assert FIRST_BACKOFF_S * 2**number / 2 <= wait_s <= FIRST_BACKOFF_S * 2**number


async def test_a_command_that_is_not_there() -> None:
    async with linked("/no/such/program", ready=False) as mesh:
        await eventually(lambda: mesh.sample(RESTARTS) >= 1)
        assert mesh.link.pid is None


async def test_an_unfit_one_says_why_and_is_not_tried_again() -> None:
    async with linked(*DRAFTER, ready=False) as mesh:
        await eventually(lambda: mesh.link.state is DrafterState.UNUSABLE, timeout_s=START_S)
        assert "no-such-model" in mesh.link.reason
        mesh.open(1)
        await asyncio.sleep(0)
        assert mesh.is_shown(DrafterState.UNUSABLE) and mesh.sample(RESTARTS) == 0


def test_one_that_can_never_have_its_memory_says_so(tmp_path: Path) -> None:
    """No wait helps where the pool is larger than all memory that there is."""
    pieces = trained()
    shape = Shape(vocabulary=pieces.get_piece_size(), width=256, inner=256)

    def add(writer: GGUFWriter) -> None:
        add_vocabulary(writer, pieces, prefix=True)

    model = write(tmp_path / "m.gguf", shape, weights(shape), add_tokenizer=add)
    file = tmp_path / "outrider.toml"
    file.write_text(f'[models.m]\nsource = "file:{model}"\n')
    settings = DrafterSettings(
        "m",
        DrafterConfig(model=str(model), kv_bytes=1 << 60),
        model_store=str(tmp_path / "store"),
        definitions_file=str(file),
    )
    edge, drafter = socket.socketpair()
    with edge:
        process = subprocess.run(
            [*DRAFTER, settings.to_json(), str(drafter.fileno())],
            pass_fds=[drafter.fileno()],
            capture_output=True,
            text=True,
            timeout=START_S,
        )
        drafter.close()
        assert process.returncode == 0, process.stderr
        (payload,) = FrameDecoder().feed(edge.recv(1 << 16))
    said = decode_from_drafter(payload)
    assert isinstance(said, DrafterUnusable)
    assert "of memory are needed" in said.reason and "no wait helps" in said.reason


def test_memory_that_others_have_now_may_be_free_later() -> None:
    error = InsufficientMemoryError.of(100 << 20, "100 MiB are needed")
    assert unfit_for_ever(error, 200 << 20) == ""
    assert unfit_for_ever(error, 0) == "", "nobody knows how much there is"
    assert unfit_for_ever(InsufficientMemoryError("too little"), 1) == "", "or how much it takes"
    assert "there are 50 MiB in all" in unfit_for_ever(error, 50 << 20)


async def test_one_that_lacks_memory_is_tried_again_and_given_up_in_the_end() -> None:
    waits: list[float] = []

    async def pause(seconds: float) -> None:
        waits.append(seconds)

    async with linked(*odd("forgetful"), ready=False, pause=pause) as mesh:
        await eventually(lambda: mesh.link.state is DrafterState.UNUSABLE, timeout_s=3 * START_S)
        assert len(waits) == MAX_MEMORY_TRIES - 1 == mesh.sample(RESTARTS)
        assert "too little memory" in mesh.link.reason and "drafter.model" in mesh.link.reason
        assert mesh.is_shown(DrafterState.UNUSABLE)


async def test_one_that_is_ready_is_given_time_to_save(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    async with linked(*odd(f"saving:{saved}")) as mesh:
        mesh.open(1)
    assert saved.read_text() == "whole"


PARENT = """
import asyncio, sys
from outrider.telemetry.metrics import Metrics
from services.edge.drafter.process import DrafterProcess
from services.edge.drafter.settings import DrafterConfig, DrafterSettings

async def main():
    settings = DrafterSettings("smollm2-135m-instruct", DrafterConfig(model=sys.argv[1]))
    from services.edge.drafter.process import DRAFTER
    child = await DrafterProcess.start(DRAFTER, settings, lambda data: None, 1000)
    print(child.pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


async def test_it_dies_with_an_edge_that_is_killed() -> None:
    edge = await start_piped((sys.executable, "-c", PARENT, "none.gguf"))
    child = int(await edge.stdout.readline())
    edge.kill()
    await edge.finish()
    await eventually(lambda: not _runs(child), timeout_s=START_S)


def _runs(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


@pytest.mark.parametrize(
    ("is_told", "says"),
    [(True, "no draft model is shipped for m"), (False, "no model is called 'm'")],
)
async def test_the_process_knows_what_the_edges_configuration_file_defines(
    is_told: bool, says: str, tmp_path: Path
) -> None:
    file = tmp_path / "outrider.toml"
    file.write_text('[edge]\nport = 1\n[models.m]\nsource = "file:/gone.gguf"\n')
    metrics = Metrics("edge")
    settings = DrafterSettings(
        "m", log_level="error", definitions_file=str(file) if is_told else ""
    )
    link = DrafterLink(settings, 1000, DrafterMetrics(ModelLabels(metrics), "m"))
    async with leak_check():
        link.start()
        try:
            await eventually(lambda: link.state is DrafterState.UNUSABLE, timeout_s=START_S)
            assert says in link.reason
        finally:
            await link.stop()
            metrics.close()


def test_settings_survive_the_command_line() -> None:
    settings = DrafterSettings(
        "m",
        DrafterConfig(model="d", threads=3),
        limits=DrafterLimits(max_lead=7),
        definitions_file="/outrider.toml",
        mirrors=MirrorConfig(("peer://models:7400", "file:/models"), 2.5, 3),
        tls=TlsConfig(Path("/c.pem"), Path("/k.pem"), Path("/ca.pem"), "mesh.test"),
    )
    assert DrafterSettings.from_json(DrafterSettings("m").to_json()) == DrafterSettings("m")
    assert DrafterSettings.from_json(settings.to_json()) == settings


def test_waits_double_up_to_the_longest() -> None:
    restarts = DrafterRestarts()
    waits = [restarts.ended(ran_s=1.0) for _ in range(9)]
    assert waits == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]


def test_lacks_of_memory_are_counted_in_a_row() -> None:
    restarts = DrafterRestarts()
    for _ in range(3):
        for _ in range(MAX_MEMORY_TRIES - 1):
            assert restarts.ended(1.0, lacked_memory=True) is not None
        assert restarts.ended(1.0) is not None, "it got its memory, and ended for another reason"
    tries = [restarts.ended(1.0, lacked_memory=True) for _ in range(MAX_MEMORY_TRIES)]
    assert None not in tries[:-1] and tries[-1] is None


def test_one_that_ran_for_long_is_started_again_soon() -> None:
    restarts = DrafterRestarts()
    for _ in range(9):
        restarts.ended(ran_s=MAX_BACKOFF_S)
    assert restarts.ended(ran_s=MAX_BACKOFF_S) == MAX_BACKOFF_S, "not long enough"
    assert restarts.ended(ran_s=MAX_BACKOFF_S + 1.0) == FIRST_BACKOFF_S
    assert restarts.ended(ran_s=1.0) == 2 * FIRST_BACKOFF_S


def test_jitter_shortens_one_wait_and_not_the_next() -> None:
    restarts = DrafterRestarts()
    assert restarts.ended(0.0, jitter=0.5) == 0.25
    assert restarts.ended(0.0, jitter=1.0) == 1.0
