"""What the images hold is enough: every role starts with its own extra's packages alone.

Images are built and run by tools/images.py. What a test without a container engine finds is what
would break them: an import of a package that belongs to another role's extra.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest

from outrider.cli.local.settings import config_class
from outrider.config import load
from tools.check_deploy import DEPLOY
from tools.deploy_checks.gpu_image import normal
from tools.images import build_command
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


DEFAULTS = DEPLOY / "docker" / "defaults"
DOCKERFILE = (DEPLOY / "docker" / "Dockerfile").read_text()


def stage(name: str) -> str:
    """One stage of the Dockerfile, its first line included."""
    (found,) = (it for it in re.split(r"(?m)^(?=FROM )", DOCKERFILE) if f" AS {name}\n" in it)
    return found


@pytest.mark.parametrize("role", ROLES)
def test_an_image_is_of_its_role(role: str) -> None:
    packages, image = stage(f"{role}-packages"), stage(role)
    assert f"--require-hashes --requirement {role}.txt" in packages
    assert "sbom.py /opt/outrider/share" in packages
    assert image.startswith("FROM base AS ")
    assert f"COPY --from={role}-packages /opt/outrider /opt/outrider" in image
    assert f'ENTRYPOINT ["outrider", "serve", "{role}"]' in image
    assert f'CMD ["--config", "/etc/outrider/{role}.toml"]' in image
    base = stage("base")
    assert re.search(r"^USER 10001:10001$", base, re.M)
    assert re.search(r"^HEALTHCHECK .*\n.*9100/health", base, re.M)


def test_nothing_is_installed_without_a_hash() -> None:
    pinned = re.sub(r"pip install (?:[^\n]*|.*\\\n.*)(--require-hashes|--no-index)", "", DOCKERFILE)
    assert "pip install" not in pinned


@pytest.mark.parametrize("role", ROLES)
def test_the_default_command_has_settings_of_its_role(role: str) -> None:
    config = load(config_class(role), role, file=DEFAULTS / f"{role}.toml", environ={})
    assert (config.host, config.admin.port) == ("0.0.0.0", 9100)
    assert f"EXPOSE {config.port}/" in stage(role)


def test_a_default_command_without_certificates_says_so(tmp_path: Path) -> None:
    """In a sentence; it is not open to everybody instead."""
    done = subprocess.run(
        [
            *(Path(sys.executable).parent / "outrider", "serve", "router"),
            *("--config", DEFAULTS / "router.toml", "--set", "admin.port=0", "--set", "port=0"),
        ],
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
        timeout=120,
        check=False,
    )
    assert done.returncode != 0
    assert "Traceback" not in done.stderr + done.stdout
    assert "set certificate, private_key and ca" in done.stderr + done.stdout


def test_the_bill_of_materials_names_packages_and_licences(tmp_path: Path) -> None:
    script = DEPLOY / "docker" / "sbom.py"
    subprocess.run([sys.executable, script, tmp_path], check=True, timeout=120)
    document = json.loads((tmp_path / "sbom.cdx.json").read_text())
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    found = {it["purl"].partition("@")[0]: it for it in document["components"]}
    assert len({it["bom-ref"] for it in document["components"]}) == len(document["components"])
    grpc = found["pkg:pypi/grpcio"]
    assert grpc["licenses"][0]["license"]["name"] == "Apache-2.0"
    assert "pkg:pypi/outrider" in found
    (folder,) = (tmp_path / "licenses").glob(f"grpcio-{grpc['version']}")
    assert any("Apache" in text.read_text() for text in folder.iterdir())


@pytest.mark.parametrize(("docker", "verb"), [(True, "build"), (False, "bud")])
def test_the_command_that_builds_an_image(docker: bool, verb: str) -> None:
    command = build_command("edge", "base@sha256:0", "linux/arm64", docker=docker)
    assert command[0] == verb and command[-1] == "."
    pairs = list(pairwise(command))
    for pair in (
        ("--target", "edge"),
        ("--build-arg", "PYTHON_IMAGE=base@sha256:0"),
        ("--platform", "linux/arm64"),
    ):
        assert pair in pairs


@pytest.mark.parametrize("role", [*ROLES, "build"])
def test_what_an_image_installs_is_pinned_by_hash(role: str) -> None:
    """All that the role's extras ask for, in the versions of constraints.txt."""
    lines = (FOLDER / f"{role}.txt").read_text().splitlines()[1:]
    pins = [
        re.fullmatch(r"([\w.-]+)==(\S+)( --hash=sha256:[0-9a-f]{64}){1,2}", line) for line in lines
    ]
    pinned = {normal(pin[1]): pin[2] for pin in pins if pin}
    assert len(pinned) == len(lines)
    constraints = (DEPLOY.parent / "constraints.txt").read_text().splitlines()
    known = dict(line.split("==") for line in constraints if "==" in line)
    tested = {normal(name): version for name, version in known.items()}
    assert pinned.items() <= tested.items()
    asked = {normal(re.split(r"[\[<>=;]", item)[0]) for item in needed(role)}
    assert asked <= pinned.keys()


def test_the_image_for_gpus_leaves_what_it_builds_on_as_it_is() -> None:
    text = stage("inference-gpu")
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
