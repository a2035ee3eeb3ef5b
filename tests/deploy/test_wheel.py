"""The wheel and the sdist are whole: installed into a bare environment, the quick start runs there,
far from the checkout. `make dist` builds them."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.store import default_root

ROOT = Path(__file__).parents[2]
SDIST = {"outrider", "services", "protos", "CHANGELOG.md", "LICENSE", "README.md"}
SDIST |= {"constraints.txt", "pyproject.toml", "PKG-INFO", ".gitignore"}
PROMPT = ("--prompt", "What is photosynthesis?", "--max-tokens", "24", "--seed", "5")

IMPORT_ALL = """
import pkgutil, sys, outrider, services
failed = []
apart = ("tensorrt_llm", "engines.torch.", "__main__")
for package in (outrider, services):
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.", failed.append):
        if not any(name in module.name for name in apart):
            __import__(module.name)
assert not failed, failed
assert all("site-packages" in package.__file__ for package in (outrider, services))
"""
"""Every module can be imported, whose packages the extra `all` has."""


def run(*command: str | Path, cwd: Path, env: Mapping[str, str] | None = None) -> str:
    """What a command prints; its exit status is 0."""
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def build(source: Path, target: Path, *kinds: str) -> None:
    wanted = [argument for kind in kinds for argument in ("-t", kind)]
    run(sys.executable, "-m", "hatchling", "build", "-d", target, *wanted, cwd=source)


def contents(wheel: Path) -> dict[str, int]:
    """Checksums by name."""
    with zipfile.ZipFile(wheel) as archive:
        return {info.filename: info.CRC for info in archive.infolist()}


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist and the wheel of this checkout."""
    folder = tmp_path_factory.mktemp("dist")
    build(ROOT, folder, "sdist", "wheel")
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (found,) = dist.glob("*.whl")
    return found


def test_the_wheel_has_every_file_of_the_packages(wheel: Path) -> None:
    tracked = run("git", "ls-files", "outrider", "services", cwd=ROOT).splitlines()
    assert tracked and set(tracked) <= contents(wheel).keys()


def test_the_sdist_makes_the_same_wheel(dist: Path, wheel: Path, tmp_path: Path) -> None:
    (archive,) = dist.glob("*.tar.gz")
    with tarfile.open(archive) as files:
        files.extractall(tmp_path, filter="data")
    source = tmp_path / archive.name.removesuffix(".tar.gz")
    assert {path.name for path in source.iterdir()} == SDIST
    build(source, tmp_path / "again", "wheel")
    assert contents(tmp_path / "again" / wheel.name) == contents(wheel)


class Installed:
    """A bare environment into which the wheel was installed, and a user's folder."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self.home = folder / "home"
        self._bin = folder / "venv" / "bin"
        kept = {name: it for name, it in os.environ.items() if not name.startswith("OUTRIDER_")}
        kept = {name: it for name, it in kept.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        run(sys.executable, "-m", "venv", folder / "venv", cwd=folder, env=kept)
        pip = (self._bin / "python", "-m", "pip", "install", "--disable-pip-version-check")
        constraints = ("--constraint", ROOT / "constraints.txt")
        run(*pip, *constraints, f"{wheel}[all]", cwd=folder, env=kept)
        self.home.mkdir()
        # Names that the user's own code may well have.
        for name in ("services.py", "outrider.py", "typing.py"):
            (self.home / name).write_text("raise SystemExit('not Outrider')")
        self._env = {
            **kept,
            "HOME": str(self.home),
            "PATH": f"{self._bin}:/usr/bin:/bin",
            "OUTRIDER_MODEL_STORE": str(default_root()),
        }
        for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME"):
            self._env.pop(name, None)

    def __call__(self, program: str, *arguments: str, **env: str) -> str:
        return run(self._bin / program, *arguments, cwd=self.home, env={**self._env, **env})


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(tmp_path_factory.mktemp("installed"), wheel)


# The packages are some hundreds of megabytes.
pytestmark = pytest.mark.timeout(1500)


@pytest.mark.model
@pytest.mark.e2e
def test_the_quick_start_runs_in_a_bare_environment(installed: Installed) -> None:
    assert DEFAULT_MODEL.name in installed("outrider", "models", "list")
    installed("outrider", "up", "--detach", "--port", "0", "--http-port", "0")
    try:
        reply = installed("outrider", "chat", *PROMPT)
        assert "edge" in installed("outrider", "status")
    finally:
        installed("outrider", "down")
    assert reply.strip()
    assert installed("outrider", "reference", *PROMPT) == reply


def test_every_module_finds_its_packages(installed: Installed) -> None:
    installed("python", "-P", "-c", IMPORT_ALL)


def test_commands_find_their_files(installed: Installed) -> None:
    assert installed("outrider", "--version").startswith("outrider ")
    installed("outrider", "config", "defaults", "edge")
    (installed.home / "texts.txt").write_text("one\ntwo\n")
    installed("outrider", "tokenize", "texts.txt", "--out", "ids")
    words = {"COMP_WORDS": "outrider do", "COMP_CWORD": "1"}
    completed = installed("outrider", **words, _OUTRIDER_COMPLETE="complete_bash")
    assert completed.split() == ["down", "doctor"]
