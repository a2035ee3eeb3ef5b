"""Check deploy/: build every overlay, validate it strictly, hold it to the policies, lint.

python -m tools.check_deploy           all of it; status 1 for problems, 2 for a missing tool
python -m tools.check_deploy --fetch   only fetch kustomize and Helm, so that later runs are offline
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import yaml

from tools.deploy_checks import helm, kustomize
from tools.deploy_checks.compose import compose_problems
from tools.deploy_checks.gpu_image import pin_problems
from tools.deploy_checks.kustomize import ToolMissingError
from tools.deploy_checks.lint import dockerfile_problems, yaml_problems
from tools.deploy_checks.manifests import Manifests, schema_problems
from tools.deploy_checks.policies import POLICIES, policy_problems
from tools.helm_chart import CHART, chart_problems
from tools.pin_hashes import FOLDER, project_requirements
from tools.prometheus_rules import rule_problems

DEPLOY = Path(__file__).resolve().parent.parent / "deploy"


def overlays(deploy: Path = DEPLOY) -> list[Path]:
    """The folders that are deployed."""
    return sorted(path.parent for path in (deploy / "overlays").glob("*/kustomization.yaml"))


def components(deploy: Path = DEPLOY) -> list[Path]:
    """Folders of the components that an overlay may have besides those of us-east."""
    used = (deploy / "overlays" / "us-east" / "kustomization.yaml").read_text("utf-8")
    found = sorted(path.parent for path in (deploy / "components").glob("*/kustomization.yaml"))
    return [folder for folder in found if f"components/{folder.name}\n" not in used]


def overlay_manifests(folder: Path) -> Manifests:
    """The manifests that an overlay builds. Raises ValueError with kustomize's message if it
    fails."""
    return Manifests.parse(kustomize.build(folder))


def site_of(component: Path) -> str:
    """The overlay that may have it: components whose names end with -edge are for edge sites."""
    return "edge-site" if component.name.endswith("-edge") else "us-east"


def component_manifests(folder: Path, overlay: str = "") -> Manifests:
    """The manifests of a whole site with this component: a copy of `overlay`, by default the one
    that `site_of` names. Raises ValueError with kustomize's message if it fails."""
    with tempfile.TemporaryDirectory(dir=DEPLOY, prefix="check-") as scratch:
        site = Path(scratch)
        shutil.copytree(
            DEPLOY / "overlays" / (overlay or site_of(folder)), site, dirs_exist_ok=True
        )
        file = site / "kustomization.yaml"
        # The copy stands one folder higher.
        told = yaml.safe_load(file.read_text("utf-8").replace("../../", "../"))
        told["components"].append(f"../components/{folder.name}")
        file.write_text(yaml.safe_dump(told), "utf-8")
        return overlay_manifests(site)


def problems_of(build: Callable[[Path], Manifests], folder: Path) -> Iterator[str]:
    """Problems in the manifests that `build` makes of a folder: its own failure, the schemas, the
    policies."""
    try:
        manifests = build(folder)
    except ValueError as error:
        yield f"kustomize: {error}"
        return
    yield from schema_problems(manifests)
    yield from policy_problems(manifests)


def checks() -> Iterator[tuple[str, list[str]]]:
    """Every check by name, with its problems."""
    yield "Dockerfile (hadolint)", list(dockerfile_problems(DEPLOY / "docker"))
    yield "YAML (yamllint)", list(yaml_problems(DEPLOY))
    pins = list(pin_problems(FOLDER, project_requirements()))
    yield "pins of the image for GPUs (pyproject.toml, tensorrt-llm 1.2.1)", pins
    problems = list(compose_problems(DEPLOY / "compose" / "compose.yaml"))
    yield "compose.yaml (settings, ports, addresses, volumes)", problems
    yield "rules of the Prometheus operator (from deploy/prometheus)", rule_problems()
    yield "Helm chart (from deploy/base; helm lint)", [*chart_problems(), *helm.lint(CHART)]
    for folder in overlays():
        title = f"overlay {folder.name} (kustomize, strict schema, {len(POLICIES)} policies)"
        yield title, list(problems_of(overlay_manifests, folder))
    for folder in components():
        title = f"component {folder.name} (in the overlay {site_of(folder)})"
        yield title, list(problems_of(component_manifests, folder))


def main(arguments: list[str]) -> int:
    """Run the checks; returns the exit status."""
    try:
        if arguments == ["--fetch"]:
            print("kustomize:", *kustomize.command())
            print("helm:", helm.command())
            return 0
        failed = 0
        for title, problems in checks():
            print(f"{'FAIL' if problems else 'ok  '} {title}")
            for problem in problems:
                print(f"       {problem}")
            failed += bool(problems)
    except ToolMissingError as error:
        print(f"not checked: {error}", file=sys.stderr)
        return 2
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
