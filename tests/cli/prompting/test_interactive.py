"""A conversation at a terminal, with a mesh of real processes and the fake engine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bench.harness.local_mesh import LocalMesh, local_mesh, outrider
from tests.cli.prompting.terminal import terminal

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

CTRL_C = "\x03"
ROOM = ("inference.max_context_tokens=16000",)
ENDLESS = ("--max-tokens", "15000")
"""Longer than anybody waits: a reply that ends by itself before Ctrl-C is seen proves nothing."""


@pytest.fixture(scope="module")
def mesh() -> Iterator[LocalMesh]:
    # Room for replies that last for seconds.
    with local_mesh(engine="fake", regions="here", settings=ROOM) as mesh:
        yield mesh


def test_ctrl_c_at_the_prompt_ends_at_once(mesh: LocalMesh) -> None:
    with terminal("chat", "--state-dir", str(mesh.state_dir)) as user:
        user.until("> ")
        user.type(CTRL_C)
        assert user.ended() == 130
        assert "Traceback" not in user.shown


def test_ctrl_c_stops_the_reply_and_the_conversation_goes_on(mesh: LocalMesh) -> None:
    flags = (*ENDLESS, "--no-provisional")
    with terminal("chat", "--state-dir", str(mesh.state_dir), *flags) as user:
        user.until("> ")
        user.type("tell me all\n")
        user.until("\n")  # the echo
        user.until(" ")  # the first words
        user.type(CTRL_C)
        assert user.until("> ").rstrip("> \r\n").endswith("cancelled")
        user.type("/bye\n")
        assert user.ended() == 0
        assert "Traceback" not in user.shown


def test_ctrl_c_ends_a_single_answer(mesh: LocalMesh) -> None:
    with terminal(*("chat", "tell me all", *ENDLESS, "--state-dir", str(mesh.state_dir))) as user:
        user.until(" ")
        user.type(CTRL_C)
        assert user.ended() == 130
        assert user.shown.endswith("\r\n")
        assert "Traceback" not in user.shown


def test_piped_lines_are_a_conversation_without_prompts(mesh: LocalMesh) -> None:
    done = outrider(
        *("chat", "--max-tokens", "8", "--state-dir", str(mesh.state_dir)), given="one\ntwo\n"
    )
    assert done.stderr.count("· 8 tokens ·") == 2
    assert "> " not in done.stderr
    assert len(done.stdout.splitlines()) >= 2
