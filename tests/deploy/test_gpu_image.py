"""The pins of the image for GPUs fit both sides, and what would not is found offline."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tools.deploy_checks.gpu_image import pin_problems
from tools.pin_hashes import FOLDER, project_requirements


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of what is committed."""
    for name in ("inference-gpu.txt", "tensorrt-llm.txt"):
        shutil.copy(FOLDER / name, tmp_path)
    return tmp_path


def repin(folder: Path, pattern: str, new: str) -> list[str]:
    path = folder / "inference-gpu.txt"
    text, count = re.subn(pattern, new, path.read_text(), flags=re.M)
    assert count == 1
    path.write_text(text)
    return list(pin_problems(folder, project_requirements()))


def test_the_committed_pins_fit(folder: Path) -> None:
    assert list(pin_problems(folder, project_requirements())) == []


@pytest.mark.parametrize(
    ("pattern", "new", "words"),
    [
        (r"^protobuf==7\S+", "protobuf==6.33.4", "tensorrt-llm asks for protobuf>=6.33.5"),
        (r"^protobuf==7\S+", "protobuf==6.33.5", "pyproject.toml requires protobuf>=7"),
        (r"^grpcio==\S+", "grpcio==2.1.0", r"etcd-sdk-python \S+ asks for grpcio<=2"),
        (r"^structlog==.*\n", "", "structlog is missing"),
        (r"^structlog==", "numpy==1.26.4 --hash=sha256:" + "0" * 64 + "\nstructlog==", "hide"),
        (r"^(structlog==\S+) \S+$", r"\1", "is not NAME==VERSION"),
    ],
)
def test_a_pin_that_does_not_fit_is_found(folder: Path, pattern: str, new: str, words: str) -> None:
    problems = repin(folder, pattern, new)
    assert any(re.search(words, problem) for problem in problems), problems
