"""A conversation at a terminal, with a mesh of real processes and the fake engine."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyte
import pytest

from bench.harness.local_mesh import LocalMesh, outrider
from tests.cli.prompting.terminal import terminal

pytestmark = pytest.mark.e2e

CTRL_C, CTRL_D, TAB, ALT_ENTER = "\x03", "\x04", "\t", "\x1b\r"
UP, LEFT = "\x1b[A", "\x1b[D"
PASTE = "\x1b[200~{}\x1b[201~"
"""Bracketed paste, as terminals send it."""
DIM, CLEARED = "\x1b[2m", "\x1b[H\x1b[J"
ENDLESS = ("--temperature", "0", "--max-tokens", "15000")
"""Greedy: of a sampled reply of the fake model hardly a token is drafted, and so shown early."""
"""Longer than anybody waits: a reply that ends by itself before Ctrl-C is seen proves nothing."""


def test_ctrl_c_at_the_prompt_ends_at_once(mesh: LocalMesh) -> None:
    with terminal("chat", "--state-dir", str(mesh.state_dir)) as user:
        user.prompted()
        user.type(CTRL_C)
        assert user.ended() == 130
        assert "Traceback" not in user.shown


def test_ctrl_c_stops_the_reply_and_the_conversation_goes_on(mesh: LocalMesh) -> None:
    flags = (*ENDLESS, "--no-provisional")
    with terminal("chat", "--state-dir", str(mesh.state_dir), *flags) as user:
        user.prompted()
        user.type("tell me all\r")
        user.until("\r\n")  # what was typed stands there
        user.until(" ")  # the first words
        user.type(CTRL_C)
        assert ", cancelled" in user.prompted()
        user.type("/bye\r")
        assert user.ended() == 0
        assert "Traceback" not in user.shown


def test_a_conversation_goes_on_where_replies_go_to_a_file(mesh: LocalMesh, tmp_path: Path) -> None:
    flags = ("--max-tokens", "8", "--state-dir", str(mesh.state_dir))
    with (tmp_path / "replies").open("wb") as file:
        with terminal("chat", *flags, output=file.fileno()) as user:
            for _ in range(2):
                user.prompted()
                user.type("hello\r")
            user.prompted()
            user.type("/bye\r")
            assert user.ended() == 0
    assert "Traceback" not in user.shown
    assert (tmp_path / "replies").read_bytes()


def test_ctrl_c_ends_a_single_answer(mesh: LocalMesh) -> None:
    with terminal(*("chat", "tell me all", *ENDLESS, "--state-dir", str(mesh.state_dir))) as user:
        user.until(" ")
        user.type(CTRL_C)
        assert user.ended() == 130
        assert user.shown.endswith("\r\n")
        assert "Traceback" not in user.shown


def test_what_is_piped_in_is_one_prompt(mesh: LocalMesh) -> None:
    done = outrider(
        *("chat", "--max-tokens", "8", "--state-dir", str(mesh.state_dir)), given="one\ntwo\n"
    )
    assert done.stderr.count("8 tokens, ") == 1
    assert done.stderr.count("stopped at the length limit") == 1
    assert "> " not in done.stderr


@pytest.mark.parametrize("flags", [(), ("--json",), ("--json", "--parallel", "3")])
def test_prompts_that_are_refused_are_named_and_the_rest_is_answered(
    flags: tuple[str, ...], mesh: LocalMesh, tmp_path: Path
) -> None:
    file = tmp_path / "prompts.jsonl"
    too_long = json.dumps("word " * 20_000)
    file.write_text(f'"one"\ntwo\n{too_long}\n"four"\n', "utf-8")
    done = outrider(
        *("chat", "--prompt-file", str(file), "--max-tokens", "3", *flags),
        *("--state-dir", str(mesh.state_dir)),
        check=False,
    )
    assert done.returncode == 1
    assert f"outrider: {file}, line 2 is not a JSON string" in done.stderr
    assert "tokens" in done.stderr
    if flags:
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        assert [row.get("prompt", "")[:4] for row in rows] == ["one", "", "word", "four"]
        assert [row.get("error", {}).get("reason") for row in rows] == [
            *(None, "INVALID_REQUEST", "PROMPT_TOO_LONG", None)
        ]
        assert rows[0]["request_id"] and rows[0]["model"] and rows[0]["replica"]
    else:
        assert done.stderr.count("3 tokens, ") == 2


@pytest.mark.parametrize(
    ("flags", "refusal"),
    [
        ("--state-dir {folder}", "the mesh here serves .*, not nosuch; "),
        ("--edge {edge} --ca {ca}", "the edge has no model 'nosuch'; it has "),
        ("--edge {edge} --ca {ca} --key-file {folder}/development.key", "outrider: .*nosuch"),
    ],
)
def test_a_model_that_nobody_serves_is_refused_before_anything_is_asked(
    flags: str, refusal: str, mesh: LocalMesh
) -> None:
    edge = "{}:{}".format(*mesh.edge)
    given = flags.format(folder=mesh.state_dir, edge=edge, ca=mesh.ca)
    with terminal("chat", "--max-tokens", "3", *given.split()) as user:
        user.prompted()
        user.type("/model nosuch\r")
        user.prompted()
        assert re.search(refusal, user.shown.replace("\r\n", ""))
        user.type("/model\r")
        user.until("asking the default model")
        user.prompted()
        user.type("/bye\r")
        assert user.ended() == 0


def test_ctrl_d_and_ctrl_c_in_a_line(mesh: LocalMesh) -> None:
    with terminal("chat", "--state-dir", str(mesh.state_dir)) as user:
        user.prompted()
        user.type("not this" + CTRL_C + "/foo\r")
        user.until("there is no command /foo")
        user.prompted()
        user.type(CTRL_D)
        assert user.ended() == 0
        assert "Traceback" not in user.shown


def test_lines_are_edited_and_come_back(mesh: LocalMesh) -> None:
    with terminal("chat", "--state-dir", str(mesh.state_dir)) as user:
        user.prompted()
        user.type("/seed 12" + LEFT + "4\r")
        user.until("seed 142")
        user.prompted()
        user.type(UP + "\r")
        user.until("seed 142")
        user.prompted()
        user.type("/sta" + TAB)
        user.until("ts")  # completed; what was typed may have been shown before
        user.type("\r")
        user.until("asking ")
        user.prompted()
        user.type("/bye\r")
        assert user.ended() == 0
    kept = mesh.state_dir / "chat_history"
    assert kept.stat().st_mode & 0o777 == 0o600
    with terminal("chat", "--state-dir", str(mesh.state_dir)) as user:
        user.prompted()
        user.type(UP + UP + UP + "\r")  # behind /bye and /stats
        user.until("seed 142")
        user.type(CTRL_D)
        assert user.ended() == 0


def test_what_is_pasted_is_one_message(mesh: LocalMesh, tmp_path: Path) -> None:
    file = tmp_path / "said.json"
    with terminal("chat", "--max-tokens", "8", "--state-dir", str(mesh.state_dir)) as user:
        user.prompted()
        user.type(PASTE.format("one\rtwo\r/bye"))
        user.type(ALT_ENTER + "three\r")
        user.until("stopped at the length limit")
        user.prompted()
        user.type(f"/save {file}\r")
        user.until("2 messages are in")
        user.type(CTRL_D)
        assert user.ended() == 0
    assert json.loads(file.read_text("utf-8"))[0]["content"] == "one\ntwo\n/bye\nthree"


def test_typing_during_a_reply_waits_for_the_prompt(mesh: LocalMesh) -> None:
    # Greedy, since this test waits for drafts, which this model's noise would have none of.
    flags = ("--temperature", "0", "--max-tokens", "1000", "--state-dir", str(mesh.state_dir))
    with terminal("chat", *flags) as user:
        user.prompted()
        user.type("tell me all\r")
        user.until(DIM)  # the reply has begun
        user.type("QQQ")
        assert "QQQ" not in user.prompted()
        user.until("Q")
        user.type(CTRL_C + CTRL_D)
        assert user.ended() == 0


def test_a_resized_terminal_shows_the_reply_once(mesh: LocalMesh) -> None:
    with terminal("chat", *ENDLESS, "--state-dir", str(mesh.state_dir)) as user:
        user.prompted()
        user.type("tell me all\r")
        user.until(DIM)
        user.resize(60, 20)
        user.until(CLEARED)
        for _ in range(30):  # rows of the reply, with provisional text in some of them
            user.until("\r\n")
        user.type(CTRL_C)
        user.until("cancelled")
        user.type(CTRL_D)
        assert user.ended() == 0
        said = user.shown.rpartition(CLEARED)[2]
    screen = pyte.Screen(60, 20)
    pyte.Stream(screen).feed(CLEARED + said)
    rows = [row.rstrip() for row in screen.display if row.strip()]
    assert len(rows) > 5
    assert len(set(rows)) == len(rows), "a row is there twice"
