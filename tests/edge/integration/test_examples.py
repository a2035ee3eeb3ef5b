"""The programs in examples/, and the client without an event loop, at a real edge with keys."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from outrider.client import Committed, Done, Message, connect_blocking
from outrider.errors import ConfigError, OutriderError, UnauthenticatedError, UnavailableError
from outrider.models.vocabulary import Vocabulary
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
