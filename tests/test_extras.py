"""A missing optional package is one line that says what to run, and that works where it is said."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from outrider.extras import EXTRA_OF, advice_for, install_command

EXTRAS = tomllib.loads(Path("pyproject.toml").read_text("utf-8"))["project"][
    "optional-dependencies"
]
WITHOUT = """
import sys
sys.modules[sys.argv[1]] = None  # importing it fails
sys.argv = ["outrider", *sys.argv[2:]]
from outrider.cli.main import main
main()
"""


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def packages_of(extra: str) -> set[str]:
    """Names of all packages that an extra installs by itself."""
    found: set[str] = set()
    for requirement in EXTRAS[extra]:
        inner = re.fullmatch(r"outrider\[(.*)\]", requirement)
        names = inner[1].split(",") if inner else ()
        found |= {normal(re.split(r"[\[<>=;]", requirement)[0])} - {"outrider"}
        found |= {package for name in names for package in packages_of(name)}
    return found


@pytest.mark.parametrize("module", [name for name in EXTRA_OF if name != "torch"])
def test_the_extra_of_a_module_installs_it(module: str) -> None:
    packages = {normal(name) for name in packages_distributions()[module]}
    assert packages & packages_of(EXTRA_OF[module])


def test_all_has_every_package_of_every_command() -> None:
    for extra in {*EXTRA_OF.values()} - {"torch"}:
        assert packages_of(extra) <= packages_of("all")


def test_the_command_names_the_environment_that_lacks_them() -> None:
    python, *rest = shlex.split(install_command("bulk", "s3"))
    assert python == sys.executable
    assert rest == ["-m", "pip", "install", "outrider[bulk,s3]"]
    assert advice_for("pyarrow.parquet").startswith("pyarrow is not installed; run: ")
    assert advice_for("outrider.nonsense") == advice_for(None) == ""


@pytest.mark.parametrize(
    ("module", "command", "extra"),
    [
        ("aioquic", ("chat", "--prompt", "x", "--edge", "127.0.0.1:1"), "client"),
        ("openvino", ("reference", "--prompt", "x"), "inference"),
        ("pyarrow", ("tokenize", "pyproject.toml", "--out", "nowhere"), "bulk"),
    ],
)
def test_a_command_without_its_package(module: str, command: tuple[str, ...], extra: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, module, *command], capture_output=True, text=True
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"outrider: {module} is not installed; run: ")
    assert line.endswith(f"-m pip install 'outrider[{extra}]'")
