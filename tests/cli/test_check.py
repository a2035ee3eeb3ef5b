"""`outrider check`: a mesh that serves, and what is said of one that does not."""

from __future__ import annotations

import json
import os
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bench.harness.local_mesh import LocalMesh, outrider
from outrider.access.client_key import DEVELOPMENT_KEY
from outrider.cli.check import of_certificate, of_edge_list, of_state
from outrider.edge_list import EdgeList, ListedEdge, sign
from outrider.testing import free_tcp_port, free_udp_port
from tests.cli.invoking import invoke
from tests.cli.test_status import MODEL, REGION, REPLICA

WELL = REPLICA | {"inconsistent": False}


def _failures(**state: Any) -> list[str]:
    found = of_state({"models": [MODEL], "replicas": [WELL]} | state)
    return [it.what for it in found if not it.ok]


def test_a_mesh_with_replicas_that_take_sessions_is_well() -> None:
    assert _failures() == []


def test_what_is_wrong_with_models_and_replicas_is_said() -> None:
    empty = MODEL | {"regions": [REGION | {"ready_replicas": 0}]}
    assert _failures(models=[empty]) == ["m: 0 of 2 replicas in us take sessions"]
    assert _failures(models=[]) == ["the router knows no model that is served"]
    down = WELL | {"state": "DOWN"}
    assert _failures(replicas=[down, WELL]) == ["here-0 at h:1 is DOWN for 125 s"]
    assert _failures(replicas=[REPLICA]) == [
        "here-0 opens sessions as another model than it reports"
    ]


@pytest.mark.parametrize(
    ("days", "ok", "soon"), [(30, True, False), (1, True, True), (-1, False, False)]
)
def test_a_certificate_is_looked_at(days: int, ok: bool, soon: bool) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    found = of_certificate(now + timedelta(days=days), now)
    assert (found.ok, "(soon)" in found.what) == (ok, soon)


@pytest.mark.parametrize(
    ("days", "ok", "soon"),
    [(30, True, False), (6, True, True), (-1, False, False), (1 << 36, True, False)],
)
def test_a_list_of_edges_is_looked_at(days: int, ok: bool, soon: bool) -> None:
    now = datetime(2027, 1, 1, tzinfo=UTC)
    ends_at = int(now.timestamp()) + days * 86_400
    edges = EdgeList((ListedEdge("edge.example", 4433),), 1, ends_at)
    found = of_edge_list(sign(edges, Ed25519PrivateKey.generate()).encoded(), now)
    assert (found.ok, "(soon)" in found.what) == (ok, soon)
    assert found.what.startswith("its list of edges (1) ends on ")
    assert not of_edge_list(b"{}", now).ok


def test_where_nothing_listens_it_says_so() -> None:
    router, edge = f"127.0.0.1:{free_tcp_port()}", f"127.0.0.1:{free_udp_port()}"
    flags = ("--plaintext", "--timeout", "1", "--json")
    done = invoke(["check", "--router", router, "--edge", edge, *flags])
    assert done.exit_code == 1
    first, second = json.loads(done.stdout)
    assert not first["ok"] and f"{router} takes no connections" in first["what"]
    assert not second["ok"] and edge in second["what"]


def _checked(*flags: str) -> tuple[int, list[dict[str, Any]]]:
    done = outrider("check", "--json", *flags, check=False)
    return done.returncode, json.loads(done.stdout)


@pytest.mark.e2e
def test_a_mesh_of_real_processes_is_well_but_for_while_a_replica_is_stopped(
    mesh: LocalMesh, tmp_path: Path
) -> None:
    here = ("--state-dir", str(mesh.state_dir))
    status, found = _checked(*here)
    assert status == 0 and all(it["ok"] for it in found), found
    assert [it["what"].split()[0] for it in found[-2:]] == ["the", "a"]
    assert found[-1]["what"].startswith("a chat through it has text from ")

    (edge,) = mesh.services("edge")
    elsewhere = ("--edge", f"{mesh.state.host}:{edge['port']}")
    ca = ("--edge-ca", str(mesh.state_dir / "tls" / "cert.pem"))
    wrong = tmp_path / "key"
    wrong.write_text("or_no_such_key")
    status, found = _checked(*elsewhere, *ca, "--key-file", str(wrong))
    assert status == 1 and not found[-1]["ok"], found
    key = ("--key-file", str(mesh.state_dir / DEVELOPMENT_KEY))
    assert _checked(*elsewhere, *ca, *key)[0] == 0
    status, found = _checked(*elsewhere, *key)  # nothing says whom to trust
    assert status == 1 and "--edge-ca" in found[0]["fix"]

    replica = mesh.services("inference")[0]
    os.kill(replica["pid"], signal.SIGSTOP)  # it lives, so that nobody starts another one
    try:
        while True:
            status, found = _checked(*here, "--no-chat")
            if status:
                break
        assert any(replica["name"] in it["what"] and not it["ok"] for it in found), found
    finally:
        os.kill(replica["pid"], signal.SIGCONT)
    while _checked(*here, "--no-chat")[0]:
        pass  # until it serves again


def test_without_a_mesh_it_says_how_to_start_one(tmp_path: Path) -> None:
    done = outrider("check", "--state-dir", str(tmp_path / "none"), check=False)
    assert done.returncode == 1
    assert "start one with `outrider up" in done.stderr
