"""The programs in examples/, and the client without an event loop, at a real edge with keys."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import numpy.typing as npt
import pytest

from outrider.client import Committed, Done, Message, connect_blocking
from outrider.errors import ConfigError, OutriderError, UnauthenticatedError, UnavailableError
from outrider.models.vocabulary import Vocabulary
from services.edge.http.config import HttpConfig
from tests.api_keys import key_of, text_of
from tests.edge.integration.running import REPLY, Running, running

EXAMPLES = Path(__file__).parents[3] / "examples"
ASK = [Message("user", "hello")]


async def run(mesh: Running, example: str, key: str) -> tuple[int, str, str]:
    """Exit status, standard output and standard error."""
    done = await asyncio.to_thread(
        subprocess.run,
        (
            *(sys.executable, str(EXAMPLES / example), "127.0.0.1", str(mesh.ports.main)),
            *(str(mesh.ca), "hello"),
        ),
        capture_output=True,
        env={**os.environ, "OUTRIDER_API_KEY": key},
    )
    return done.returncode, done.stdout.decode().strip(), done.stderr.decode()


@pytest.mark.parametrize("example", ["chat.py", "chat_blocking.py"])
@pytest.mark.edge(anonymous=False, keys=(key_of("acme"),))
async def test_examples_run(example: str, mesh: Running) -> None:
    status, out, error = await run(mesh, example, text_of("acme"))
    assert (status, out) == (0, REPLY), error
    status, out, error = await run(mesh, example, text_of("nobody's"))
    assert status and not out and "not known here" in error


async def test_a_program_without_a_loop(words: Vocabulary, tmp_path: Path) -> None:
    keys = (key_of("acme"),)

    def program(port: int, ca: Path) -> None:
        with connect_blocking("127.0.0.1", port, ca=ca, key=text_of("acme")) as client:
            assert client.describe().name == "edge"
            with client.chat(ASK, idempotency_key="one") as chat:
                events = list(chat)
                assert chat.result().text == REPLY
            text = "".join(event.text for event in events if isinstance(event, Committed))
            assert text == REPLY and isinstance(events[-1], Done)
            with client.resume(chat.resume_token) as again:
                assert again.result().text == REPLY
            typing = client.typing()
            typing.update("hel")
            typing.close()
            with client.chat(ASK) as left:
                next(left)
            with client.chat(ASK) as cancelled:
                cancelled.cancel()
                cancelled.result()
            with pytest.raises(OutriderError):
                client.chat([{"role": "user"}])
        with pytest.raises(UnavailableError, match="connect again"):
            client.describe()
        with connect_blocking("127.0.0.1", port, ca=ca, key=text_of("x")) as stranger:
            with pytest.raises(UnauthenticatedError), stranger.chat(ASK) as chat:
                chat.result()
        with pytest.raises(ConfigError), connect_blocking("nothing://x"):
            pass

    async with running(words, tmp_path, REPLY, anonymous=False, keys=keys) as mesh:
        await asyncio.to_thread(program, mesh.ports.main, mesh.ca)
    assert not [it for it in threading.enumerate() if it.name == "outrider-client"]


@pytest.mark.edge(anonymous=False, keys=(key_of("acme"),), http=HttpConfig(port=0))
async def test_a_drafter_of_n_grams_runs(mesh: Running) -> None:
    where = f"127.0.0.1:{mesh.ports.http}"

    def example(key: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            (sys.executable, str(EXAMPLES / "verify_ngrams.py"), where, "-", "hello"),
            capture_output=True,
            env={**os.environ, "OUTRIDER_API_KEY": key},
            text=True,
        )

    done = await asyncio.to_thread(example, text_of("acme"))
    assert (done.returncode, done.stdout.strip()) == (0, REPLY), done.stderr
    assert f"{len(REPLY) + 1} tokens in" in done.stderr
    done = await asyncio.to_thread(example, text_of("nobody's"))
    assert done.returncode and not done.stdout and "not known here" in done.stderr


def test_a_drafter_by_a_model_takes_what_it_is_sure_of() -> None:
    path = EXAMPLES / "verify_model.py"
    spec = importlib.util.spec_from_file_location("verify_model", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def model(ids: npt.NDArray[np.int64]) -> SimpleNamespace:
        """Sure that numbers go on up to 6; of what follows it knows nothing."""
        logits = np.zeros((1, ids.shape[1], 9))
        if ids[0, -1] < 6:
            logits[0, -1, ids[0, -1] + 1] = 20.0
        return SimpleNamespace(logits=logits)

    drafter = module.GreedyDrafter(model, lambda ids: np.array([ids]))
    assert drafter.draft([1, 2, 3], 8) == [4, 5, 6]
    assert drafter.draft([1, 2, 3], 2) == [4, 5]
    assert drafter.draft([6], 8) == []
