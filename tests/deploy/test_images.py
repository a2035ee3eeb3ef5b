"""What the images hold is enough: every role starts with its own extra's packages alone.

Images cannot be built in a test. What can be tested is what would break them: an import of a
package that belongs to another role's extra.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tools.check_deploy import DEPLOY
from tools.deploy_checks.gpu_image import normal
from tools.pin_hashes import FOLDER, needed

ROLES = ("edge", "router", "tokenizer", "inference")
EXTRA_MODULES = {
    "client": (
        *("aioquic", "certifi", "h2", "prompt_toolkit"),
        *("pylsqpack", "service_identity", "wcwidth"),
    ),
    "inference": ("h11", "openvino", "openvino_genai", "openvino_tokenizers", "llguidance"),
    "redis": ("redis",),
    "s3": ("obstore",),
    "jwt": ("jwt", "pyjwt"),
    "edge": ("anycorn", "anyio", "msgspec", "starlette"),
}
INCLUDED = {
    "edge": ("client", "jwt", "edge"),
    "router": (),
    "tokenizer": (),
    "inference": ("inference",),
}


def dockerfile(role: str) -> str:
    return (DEPLOY / "docker" / f"{role}.Dockerfile").read_text()


@pytest.mark.parametrize("role", ROLES)
def test_an_image_is_of_its_role(role: str) -> None:
    text = dockerfile(role)
    assert f"--require-hashes --requirement {role}.txt" in text
    assert "pip install" not in re.sub(r"pip install [^\n]*(--require-hashes|--no-index)", "", text)
    assert f'ENTRYPOINT ["outrider", "serve", "{role}"]' in text
    assert re.search(r"^USER 10001:10001$", text, re.M)
    assert re.search(r"^HEALTHCHECK .*\n.*9100/health", text, re.M)
    assert text.count("FROM ") == 2


@pytest.mark.parametrize("role", [*ROLES, "build"])
def test_what_an_image_installs_is_pinned_by_hash(role: str) -> None:
    """All that the role's extras ask for, in the versions of constraints.txt."""
    lines = (FOLDER / f"{role}.txt").read_text().splitlines()[1:]
    pins = [re.fullmatch(r"([\w.-]+)==(\S+) --hash=sha256:[0-9a-f]{64}", line) for line in lines]
    pinned = {normal(pin[1]): pin[2] for pin in pins if pin}
    assert len(pinned) == len(lines)
    constraints = (DEPLOY.parent / "constraints.txt").read_text().splitlines()
    known = dict(line.split("==") for line in constraints if "==" in line)
    tested = {normal(name): version for name, version in known.items()}
    assert pinned.items() <= tested.items()
    asked = {normal(re.split(r"[\[<>=;]", item)[0]) for item in needed(role)}
    assert asked <= pinned.keys()


def test_the_image_for_gpus_leaves_what_it_builds_on_as_it_is() -> None:
    text = dockerfile("inference-gpu")
    assert "--system-site-packages --without-pip /opt/outrider" in text
    assert re.search(r"--no-deps \\\n +--require-hashes --requirement inference-gpu.txt", text)
    assert re.search(r"^USER 10001:10001$", text, re.M)
    assert 'ENTRYPOINT ["outrider", "serve", "inference"]' in text
    lines = (FOLDER / "inference-gpu.txt").read_text().splitlines()[1:]
    constraints = (DEPLOY.parent / "constraints.txt").read_text().splitlines()
    assert {line.split(" ")[0].lower() for line in lines} <= {it.lower() for it in constraints}


def test_every_package_of_an_extra_is_accounted_for() -> None:
    """So that a new dependency of one role cannot slip into another unseen."""
    project = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    own, *packages = extras["edge"]
    assert own == "outrider[client,jwt,fast-tokenizers]"
    assert {re.split(r"[<>=]", item)[0] for item in packages} == set(EXTRA_MODULES["edge"])
    assert extras["router"] == [] and extras["tokenizer"] == ["outrider[fast-tokenizers]"]
    for extra, modules in EXTRA_MODULES.items():
        if extra == "edge":
            continue
        names = {re.split(r"[<>=]", item)[0].replace("-", "_") for item in extras[extra]}
        assert names <= set(modules)


@pytest.mark.parametrize("role", ROLES)
def test_a_role_needs_no_package_of_another(role: str, tmp_path: Path) -> None:
    blocked = [
        module
        for extra, modules in EXTRA_MODULES.items()
        if extra not in INCLUDED[role]
        for module in modules
    ]
    script = (
        "import sys\n"
        f"sys.modules.update(dict.fromkeys({blocked!r}))\n"  # None: importing it fails
        f"import outrider.cli.main, services.{role}.app, services.{role}.config\n"
        "from typer.testing import CliRunner\n"
        f"command = ['serve', {role!r}, '--help']\n"
        "done = CliRunner().invoke(outrider.cli.main.app_for(command), command)\n"
        "assert done.exit_code == 0, done.output\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
