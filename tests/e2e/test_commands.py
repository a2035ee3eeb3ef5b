"""The commands as users type them, against real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from bench.harness.local_mesh import LocalMesh, local_mesh, outrider
from outrider.cli.local import development_key
from outrider.models.catalog import DEFAULT_MODEL

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

LIMIT_S = 200.0
NO_DRAFTER = ("edge.drafter.model=none",)
"""It would load the real model, and has no part where the engine is none."""
_UP = ("up", "--engine", "fake", "--port", "0", "--http-port", "0")


def _chat(mesh: LocalMesh, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return outrider("chat", "--state-dir", str(mesh.state_dir), *arguments, check=check)


@pytest.mark.model
def test_chat_equals_reference(mesh: LocalMesh, tmp_path: Path) -> None:
    prompts = ["Why is the sky blue?", "Écris une phrase sur la mer.", 'def add(a, b):\n    """']
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(json.dumps(p) for p in prompts), encoding="utf-8")
    flags = ["--prompt-file", str(file), "--max-tokens", "40", "--json", "--seed", "7"]
    flags += ["--temperature", "0.8"]  # greedy replies: test_exactness, test_own_model
    flags += ["--logprobs", "2"]
    chats = [json.loads(line) for line in _chat(mesh, *flags).stdout.splitlines()]
    truth = [json.loads(line) for line in outrider("reference", *flags).stdout.splitlines()]
    assert len(chats) == len(prompts)
    for field in ("prompt", "text", "ids", "finish_reason", "logprobs"):
        assert [c[field] for c in chats] == [t[field] for t in truth]
    assert [len(c["logprobs"]) for c in chats] == [len(c["ids"]) for c in chats]


@pytest.mark.model
def test_a_prediction_saves_calls_and_changes_nothing(mesh: LocalMesh, tmp_path: Path) -> None:
    flags = ["--prompt", "Count from one to twenty in words.", "--max-tokens", "60", "--json"]
    flags += ["--temperature", "0.8", "--seed", "3"]
    alone = json.loads(_chat(mesh, *flags).stdout)
    file = tmp_path / "prediction.txt"
    words = alone["text"].split(" ")
    file.write_text(" ".join([*words[:8], "Another", *words[9:]]), encoding="utf-8")
    predicted = json.loads(_chat(mesh, *flags, "--prediction", str(file)).stdout)
    for field in ("text", "ids", "finish_reason"):
        assert predicted[field] == alone[field]
    assert predicted["usage"]["accepted_prediction_tokens"] > len(alone["ids"]) // 3
    assert alone["usage"]["accepted_prediction_tokens"] == 0


@pytest.mark.model
def test_reference_ends_well_while_its_engine_still_prepares() -> None:
    done = outrider("reference", "--prompt", "hi", "--max-tokens", "1", check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.model
def test_plain_output_is_the_committed_text(mesh: LocalMesh) -> None:
    flags = ("--prompt", "Name three colours.", "--max-tokens", "24")
    plain = _chat(mesh, *flags)
    as_json = json.loads(_chat(mesh, *flags, "--json").stdout)
    assert plain.stdout == as_json["text"] + "\n"
    stats = as_json["speculation_stats"]
    assert stats["rtt_ms"] > 0, "measured from edge to replica, through the router"
    assert stats["commit_interval_ms"] > 0
    assert "first final text after" in plain.stderr


@pytest.mark.model
@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--prompt", "hi", "--model", "no-such-model"), "no-such-model"),
        (("--prompt", "hi", "--top-p", "0"), "top_p"),
        (("--prompt", ""), "no text"),
        (("--prompt", "word " * 20_000), "tokens"),
    ],
)
def test_bad_input_is_one_clear_line(mesh: LocalMesh, flags: tuple[str, ...], says: str) -> None:
    done = _chat(mesh, *flags, check=False)
    assert done.returncode == 1
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.model
def test_every_service_answers_on_its_admin_port(mesh: LocalMesh) -> None:
    for row in mesh.state.services:
        base = f"http://{mesh.state.host}:{row['admin_port']}"
        for path in ("/health", "/ready"):
            with urllib.request.urlopen(base + path, timeout=60) as reply:
                assert reply.status == 200
    _chat(mesh, "--prompt", "Say hi.", "--max-tokens", "8")
    metrics = ""
    for row in mesh.services("inference"):  # whichever of them answered
        url = f"http://{mesh.state.host}:{row['admin_port']}/metrics"
        metrics += urllib.request.urlopen(url, timeout=60).read().decode()
    for name in ("ttft_seconds", "token_latency_seconds", "batch_utilization_ratio"):
        assert f"\noutrider_{name}" in metrics


@pytest.mark.model
def test_status_lists_the_services(mesh: LocalMesh) -> None:
    state = json.loads(outrider("status", "--json", "--state-dir", str(mesh.state_dir)).stdout)
    roles = sorted(row["role"] for row in state["services"])
    assert roles == ["edge", *["inference"] * 4, "router", "tokenizer"]
    tokenizers = {(row["service"], row["model"]): row for row in state["tokenizers"]}
    assert tokenizers.keys() == {(name, DEFAULT_MODEL.name) for name in ("edge", "tokenizer")}
    assert all(row["backend"] and row["reason"] for row in tokenizers.values())


@pytest.mark.model
def test_doctor_finds_this_machine_well(mesh: LocalMesh) -> None:
    assert "FAIL" not in outrider("doctor", "--state-dir", str(mesh.state_dir)).stdout


def test_no_mesh_is_said_plainly(tmp_path: Path) -> None:
    done = outrider("chat", "--state-dir", str(tmp_path), "--prompt", "hi", check=False)
    assert done.returncode == 1
    assert "outrider up" in done.stderr


def test_killed_supervisor_leaves_no_orphan_and_the_next_one_says_so() -> None:
    with local_mesh(engine="fake", regions="here", settings=NO_DRAFTER) as mesh:
        pids = [row["pid"] for row in mesh.state.services]
        os.kill(mesh.state.supervisor_pid, signal.SIGKILL)
        folder = ("--state-dir", str(mesh.state_dir))
        flags = ("--regions", "here", "--set=edge.drafter.model=none", *folder)
        again = outrider(*_UP, "--detach", *flags)  # its context stops this one, too
        assert not any(_alive(pid) for pid in pids)
        lines = [it for it in again.stderr.splitlines() if not it.startswith("starting: ")]
        killed, *rows, ready, http, _, _ = lines
        assert f"(process {mesh.state.supervisor_pid}) was killed" in killed
        assert sorted(row.split()[1] for row in rows) == [
            "edge",
            "inference",
            "router",
            "tokenizer",
        ]
        assert ready.startswith("ready; ") and f"outrider chat --state-dir {folder[1]}" in ready
        assert http.startswith("HTTP: http://127.0.0.1:")
        state = json.loads((mesh.state_dir / "mesh.json").read_text(encoding="utf-8"))
        pids = [row["pid"] for row in state["services"]]
        assert all(_alive(pid) for pid in pids)
    assert not any(_alive(pid) for pid in pids), "`down` leaves no process"


def test_replies_without_a_limit_end_at_the_edges_and_ctrl_c_stops_an_attached_mesh(
    tmp_path: Path,
) -> None:
    settings = ("--set=edge.drafter.model=none", "--set=edge.http.default_max_tokens=3")
    command = [*_UP, *settings, "--state-dir", str(tmp_path)]
    with subprocess.Popen(
        [sys.executable, "-m", "outrider.cli.main", *command],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("ready"):
                break
        state = json.loads((tmp_path / "mesh.json").read_text(encoding="utf-8"))
        (edge,) = [row for row in state["services"] if row["role"] == "edge"]
        _replies_end_after_three_tokens(edge["http_port"], tmp_path)
        os.killpg(process.pid, signal.SIGINT)
        process.stderr.read()
        assert process.wait(LIMIT_S) == 0
    assert not any(_alive(row["pid"]) for row in state["services"])


def test_a_service_that_cannot_start_is_explained(tmp_path: Path) -> None:
    done = outrider(
        *(*_UP, "--state-dir", str(tmp_path)),
        "--set=router.no_such_key=1",
        check=False,
    )
    assert done.returncode == 1
    assert "no_such_key" in done.stderr


def _replies_end_after_three_tokens(port: int, state_dir: Path) -> None:
    """By every API; that of Anthropic has every request name a limit."""
    messages = [{"role": "user", "content": "hi"}]
    model = DEFAULT_MODEL.name
    chat = _asked_over_http(port, state_dir, "chat/completions", {"messages": messages})
    assert chat["choices"][0]["finish_reason"] == "length"
    assert chat["usage"]["completion_tokens"] == 3
    response = _asked_over_http(port, state_dir, "responses", {"model": model, "input": "hi"})
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["usage"]["output_tokens"] == 3
    limited = {"model": model, "messages": messages, "max_tokens": 3}
    message = _asked_over_http(port, state_dir, "messages", limited)
    assert message["stop_reason"] == "max_tokens"
    assert message["usage"]["output_tokens"] == 3


def _asked_over_http(port: int, state_dir: Path, path: str, body: dict[str, Any]) -> Any:
    """The answer to a chat."""
    key = development_key.read(state_dir)
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/{path}",
        json.dumps(body).encode(),
        {"Content-Type": "application/json", "Authorization": f"Bearer {key}"},
    )
    with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
        return json.load(answer)


def _alive(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"
