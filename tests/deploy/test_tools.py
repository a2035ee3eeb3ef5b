"""The checks' own tools: where kustomize comes from, and what is said when it cannot be had."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from tools import check_deploy
from tools.deploy_checks import kustomize
from tools.deploy_checks.lint import dockerfile_problems, yaml_problems


@pytest.fixture
def no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine for which no kubectl is packaged; returns the one folder on its PATH."""
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def executable(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_a_missing_kustomize_is_named(no_package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(kustomize.ToolMissingError, match=r"riscv64.*on PATH"):
        kustomize.command()
    assert check_deploy.main(["--fetch"]) == 2
    assert "not checked" in capsys.readouterr().err


def test_the_machines_own_kustomize_is_used_instead(no_package: Path) -> None:
    executable(no_package / "kubectl", "exit 1")
    assert kustomize.command() == [str(no_package / "kubectl"), "kustomize"]
    executable(no_package / "kustomize", 'echo "built $1 $2"')
    assert kustomize.command() == [str(no_package / "kustomize"), "build"]
    assert kustomize.build(Path("overlay")) == "built build overlay\n"


def test_a_failing_kustomize_is_an_error_even_if_silent(no_package: Path) -> None:
    executable(no_package / "kustomize", "exit 3")
    with pytest.raises(ValueError, match="3"):
        kustomize.build(Path("overlay"))


def test_the_linters_notice(tmp_path: Path) -> None:
    (tmp_path / ".yamllint.yaml").write_text("extends: default\n")
    (tmp_path / "bad.yaml").write_text("a: 1\na: 2\n")
    (tmp_path / "bad.Dockerfile").write_text("FROM debian:latest\nRUN cd /x && apt install y\n")
    assert any("key-duplicates" in problem for problem in yaml_problems(tmp_path))
    assert any("DL3007" in problem for problem in dockerfile_problems(tmp_path))
