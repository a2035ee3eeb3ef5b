"""`outrider demo` and `make demo` as a user runs them, on meshes of their own."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import pytest

from bench.harness.local_mesh import outrider
from tests.e2e.tiny_models import write_tiny
from tools import demo

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(300)]


def test_a_replica_is_killed_in_the_middle_and_the_text_is_the_references(
    tmp_path: Path,
) -> None:
    # It says some hundred tokens before a busy machine has read the first ones: the reply is long.
    model = write_tiny(tmp_path / "Tiny Three.gguf", 0.2, context=8192)
    told = outrider(
        *("demo", "kill", "--model", str(model), "--prompt", "a river", "--seed", "3"),
        *("--max-tokens", "1500", "--after", "20"),
        check=False,
    )
    outrider("models", "rm", f"file:{model}", check=False)
    assert told.returncode == 0, told.stderr
    killed = told.stdout.partition(" [kill -9 ")[2].partition("]")[0]
    assert killed.startswith(("us-east-", "eu-west-"))
    survivor = "eu-west-" if killed.startswith("us-east-") else "us-east-"
    assert f"{killed} was killed (signal 9); {survivor}" in told.stderr
    assert "outrider: identical: " in told.stderr


def test_a_reply_that_is_over_too_soon_is_no_success(tinies: tuple[Path, Path]) -> None:
    told = outrider(
        *("demo", "kill", "--model", str(tinies[0]), "--prompt", "a river"),
        *("--max-tokens", "4", "--after", "30"),
        check=False,
    )
    assert told.returncode == 1
    assert "give a larger --max-tokens" in told.stderr


def test_both_ways_over_a_distance_say_the_same(tinies: tuple[Path, Path]) -> None:
    told = outrider(
        *("demo", "wan", "--rtt", "40", "--model", str(tinies[0]), "--prompt", "a river"),
        *("--max-tokens", "24"),
        check=False,
    )
    assert told.returncode == 0, told.stderr
    assert "plain streaming" in told.stdout
    assert "outrider: the texts are identical: " in told.stderr
    plain = told.stderr.partition("outrider: plain streaming: first text after ")[2]
    assert float(plain.partition(" ms")[0]) >= 40, "it waits for the region"


def test_make_demo_whose_chat_fails_shows_the_logs_and_keeps_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    # It has no room for a whole prompt.
    shape = ("--engine", "fake", "--regions", "here", "--set=inference.max_context_tokens=8")
    with pytest.raises(subprocess.CalledProcessError):
        demo.show(*shape)
    shown = capfd.readouterr()
    (folder,) = tmp_path.glob("outrider-demo-*")
    assert "$ outrider logs " in shown.out and "replica_ready" in shown.out
    assert "$ outrider down " in shown.out and "stopped" in shown.err
    assert f"outrider: the demo failed; its logs stay in {folder / 'logs'}" in shown.err
    assert len([*(folder / "logs").glob("*.log")]) == 4
