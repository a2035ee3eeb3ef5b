"""Two models in one mesh: each says what its reference says, while the other one crashes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from bench.harness.local_mesh import LocalMesh, local_mesh, outrider
from outrider.cli.local.state import RunningMesh, running_mesh, supervisor_pid
from outrider.client import Client, Interrupted, Message, ReconnectPolicy, connect
from outrider.sampling.params import SamplingParams
from outrider.testing import eventually
from tests.e2e.tiny_models import SHAPE
from tests.fidelity.models import weights, write

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(300)]

FEW = ("inference.max_fixed_rows=2", "inference.warm_up_rows=16")
PATIENT = ReconnectPolicy(give_up_after_s=60)
PROMPTS = ("What is a river?", "Tell me of the sea.")
NUM_TOKENS = 40


@dataclass(frozen=True, slots=True)
class Truth:
    """What one model's reference says to every prompt."""

    model: str
    replies: tuple[tuple[str, tuple[int, ...]], ...]


def truth_of(model: str, name: str, prompts: Path) -> Truth:
    done = outrider(
        *("reference", "--prompt-file", str(prompts), "--max-tokens", str(NUM_TOKENS), "--json"),
        *("--model", model),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return Truth(name, tuple((row["text"], tuple(row["ids"])) for row in rows))


@pytest.fixture(scope="module")
def truths(tinies: tuple[Path, Path]) -> tuple[Truth, Truth]:
    prompts = tinies[0].with_name("prompts.jsonl")
    prompts.write_text("\n".join(json.dumps(it) for it in PROMPTS), "utf-8")
    one, two = tinies
    found = truth_of(str(one), "tiny-one", prompts), truth_of(str(two), "tiny-two", prompts)
    assert found[0].replies != found[1].replies
    return found


async def one(client: Client, truth: Truth, number: int) -> int:
    """One exact chat; how often it was interrupted."""
    text, ids = truth.replies[number]
    async with client.chat(
        [Message("user", PROMPTS[number])],
        model=truth.model,
        sampling=SamplingParams(max_tokens=NUM_TOKENS),
    ) as asked:
        events = [event async for event in asked]
        result = await asked.result()
    assert (result.text, result.ids) == (text, ids)
    return sum(isinstance(event, Interrupted) for event in events)


class Chatting:
    """Exact chats with one model all the time."""

    def __init__(self, client: Client, truth: Truth) -> None:
        self.count = 0
        self.interruptions = 0
        self._task = asyncio.create_task(self._run(client, truth))

    async def _run(self, client: Client, truth: Truth) -> None:
        while True:
            self.interruptions += await one(client, truth, self.count % len(PROMPTS))
            self.count += 1

    async def some(self) -> None:
        """Wait until one more has begun after now, and ended."""
        wanted = self.count + 2
        await eventually(lambda: self.count >= wanted or self._task.done(), timeout_s=90.0)
        self.check()

    def check(self) -> None:
        """Raises what went wrong."""
        if self._task.done():
            self._task.result()

    async def stop(self) -> None:
        """No more chats."""
        self.check()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


def now(mesh: LocalMesh) -> RunningMesh:
    found = running_mesh(mesh.state_dir)
    assert found is not None
    return found


async def kill(mesh: LocalMesh, names: Sequence[str]) -> None:
    """SIGKILL, and wait until they are up again."""
    rows = {name: now(mesh).service(name) for name in names}
    for row in rows.values():
        os.kill(row["pid"], signal.SIGKILL)

    def are_back() -> bool:
        after = [now(mesh).service(name) for name in names]
        return all(
            row["is_up"] and row["restarts"] > rows[row["name"]]["restarts"] for row in after
        )

    await eventually(are_back, timeout_s=90.0)


async def test_a_model_crashes_and_the_other_does_not_notice(
    tinies: tuple[Path, Path], truths: tuple[Truth, Truth]
) -> None:
    """Small models: that the real one says what it should is seen in `test_exactness`."""
    first, second = truths
    own, tiny = map(str, tinies)
    # A chat that begins while the only replica of its model is down waits for it, as long as this:
    # by default 2 s, in which a busy machine starts no process.
    patient = (*FEW, "router.return_s=90")
    with local_mesh(regions="here", settings=patient, model=own, more_models=[tiny]) as mesh:
        names = [first.model, second.model]
        assert [model["name"] for model in now(mesh).models] == names
        services = {row["name"] for row in now(mesh).services}
        assert services == {"edge", "router", "tokenizer", *(f"here-{it}-0" for it in names)}
        host, port = mesh.edge
        async with connect(host, port, ca=mesh.ca, reconnect=PATIENT) as client:
            staying, other = Chatting(client, first), Chatting(client, second)
            await asyncio.gather(staying.some(), other.some())

            await kill(mesh, [f"here-{second.model}-0"])
            await asyncio.gather(staying.some(), other.some())
            assert staying.interruptions == 0, "a chat of the other model noticed"

            # Services that are started again know both.
            await kill(mesh, ["tokenizer", "router"])
            await kill(mesh, ["edge"])
            await asyncio.gather(staying.some(), other.some())
            shown = outrider("status", "--state-dir", str(mesh.state_dir)).stdout
            assert f"  {first.model} (default)" in shown and f"  {second.model}" in shown
            await staying.stop()
            await other.stop()


def test_a_model_that_cannot_be_served_ends_the_start_and_all_that_was_started(
    tinies: tuple[Path, Path], tmp_path: Path
) -> None:
    broken = tmp_path / "broken.gguf"
    write(broken, SHAPE, weights(SHAPE))  # has no tokenizer
    ports = ("--port", "0", "--http-port", "-1")
    started = outrider(
        *("up", "--detach", "--engine", "fake", "--regions", "here", *ports),
        *("--model", str(tinies[0]), "--model", str(broken), "--state-dir", str(tmp_path)),
        check=False,
    )
    assert started.returncode == 1
    assert "here-broken-0 ended with status 1 before it was ready" in started.stderr
    assert supervisor_pid(tmp_path) is None
    outrider("models", "rm", f"file:{broken}", check=False)
