"""compose.yaml holds together: settings that exist, services that find each other, nothing open."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tools.check_deploy import DEPLOY
from tools.deploy_checks.compose import Composition, compose_problems

COMPOSE = DEPLOY / "compose" / "compose.yaml"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy to change."""
    for part in ("compose", "docker"):
        shutil.copytree(DEPLOY / part, tmp_path / "deploy" / part)
    return tmp_path / "deploy" / "compose"


def test_it_is_without_problems() -> None:
    assert list(compose_problems(COMPOSE)) == []


def test_it_has_two_regions_and_every_role() -> None:
    it = Composition(COMPOSE)
    roles = sorted(it.role(service) for service in it.services.values())
    assert roles == ["", "", "edge", "inference", "inference", "router", "tokenizer"]
    replicas = [s for s in it.services.values() if it.role(s) == "inference"]
    assert {it.config(service).region for service in replicas} == {"us-east", "eu-west"}


@pytest.mark.parametrize(
    ("file", "before", "after", "problem"),
    [
        ("compose.yaml", "EDGE_ROUTERS: router:7100", "EDGE_ROUTERS: router:7101", "listens at"),
        ("compose.yaml", "EDGE_ROUTERS: router", "EDGE_ROUTERS: routers", "no service routers"),
        ("compose.yaml", "INFERENCE_REPLICA: eu-west-0", "INFERENCE_REPLICA: eu-0", "replicas"),
        ("compose.yaml", "INFERENCE_THREADS", "INFERENCE_THREAD", "thread"),
        ("compose.yaml", "{internal: true}", "{}", "internal networks alone"),
        ("compose.yaml", "127.0.0.1:8080:8080/tcp", "8080:8080/tcp", "open to other machines"),
        ("compose.yaml", "8080:8080/tcp", "8080:8081/tcp", "it binds"),
        ("compose.yaml", "pull smollm2-135m-instruct", "list", "no service fetches"),
        ("compose.yaml", "target: tokenizer", "target: router", "is built from"),
        ("compose.yaml", '["models:/var', '["wares:/var', "wares is not declared"),
        ("compose.yaml", "./router.toml", "./routers.toml", "routers.toml"),
        ("compose.yaml", "1:9100/ready", "1:9101/ready", "health check"),
        ("router.toml", "tokenizer:7200", "tokenizer:7201", "tokenizer:7201"),
        ("router.toml", "allow_plaintext = true", "", "no certificate"),
        ("../docker/Dockerfile", "/var/lib/outrider/state", "/srv", "image's user"),
    ],
)
def test_a_mistake_is_found(folder: Path, file: str, before: str, after: str, problem: str) -> None:
    text = (folder / file).read_text()
    assert before in text
    (folder / file).write_text(text.replace(before, after))
    assert any(problem in found for found in compose_problems(folder / "compose.yaml"))
