"""Write the templates of the Helm chart from what kustomize builds, so that both say the same.

python -m tools.helm_chart    deploy/helm/outrider/templates and files

The objects are those of the overlay us-east; what differs between sites is replaced by values of
`deploy/helm/outrider/values.yaml`, which is written by hand. `tests/deploy/test_helm_chart.py`
renders the chart for every overlay and compares the objects.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from tools.deploy_checks import kustomize

DEPLOY: Final = Path(__file__).resolve().parent.parent / "deploy"
CHART: Final = DEPLOY / "helm" / "outrider"
ROLES: Final = ("edge", "router", "tokenizer", "inference")
REGION: Final = "us-east"
NAMESPACE: Final = "outrider"
_HASH: Final = re.compile(r"^(.+)-[a-z0-9]{10}$")
_GENERATED: Final = {"mesh", *(f"{role}-config" for role in ROLES)}
_TOKEN: Final = re.compile(r"HELM[0-9]+END")
_HEAD: Final = (
    "{{- /* `python -m tools.helm_chart` wrote this from deploy/base: change that. */ -}}\n"
)
_PEERS: Final = ".Values.regions.pods"
_TO_ZERO: Final = DEPLOY / "components" / "scale-to-zero"
_IS_TO_ZERO: Final = (
    "and .Values.inference.enabled .Values.inference.keda.enabled "
    "(not .Values.inference.keda.minReplicas)"
)
"""Whether replicas are scaled to zero, which needs more than the number."""

Object = dict[str, Any]


@dataclass
class Tokens:
    """Words that stand for templates while objects are still data."""

    inline: dict[str, str] = field(default_factory=dict)
    """A part of a string, or a whole one."""
    lines: dict[str, Callable[[int], str]] = field(default_factory=dict)
    """The value of a key, or an item of a list: whole lines, by the spaces before them."""

    def put(self, expression: str) -> str:
        token = f"HELM{len(self.inline) + len(self.lines)}END"
        self.inline[token] = "{{ " + expression + " }}"
        return token

    def put_lines(self, lines: Callable[[int], str]) -> str:
        token = f"HELM{len(self.inline) + len(self.lines)}END"
        self.lines[token] = lines
        return token

    def yaml_of(self, key: str, expression: str) -> str:
        """The value of this key, as YAML below it; the key is left out where the value is empty."""

        def lines(indent: int) -> str:
            space, below = " " * indent, indent + 2
            return (
                f"{space}{{{{- with {expression} }}}}\n{space}{key}:\n"
                f"{' ' * below}{{{{- toYaml . | nindent {below} }}}}\n{space}{{{{- end }}}}\n"
            )

        return self.put_lines(lines)

    def if_so(self, condition: str, value: Any) -> str:
        """These keys of an object, or items of a list, under a condition."""

        def lines(indent: int) -> str:
            space = " " * indent
            written = yaml.safe_dump(value, sort_keys=True).splitlines(keepends=True)
            body = "".join(space + line for line in written)
            return f"{space}{{{{- if {condition} }}}}\n{body}{space}{{{{- end }}}}\n"

        return self.put_lines(lines)

    def written(self, thing: Object) -> str:
        """The object as a template."""
        text = yaml.safe_dump(thing, sort_keys=True, width=10_000)
        text = text.replace("{{", '{{ "{{" }}')  # of Prometheus's own templates
        return "".join(self._line(line) for line in text.splitlines(keepends=True))

    def _line(self, line: str) -> str:
        whole = re.fullmatch(r"( *)(?:- |[^\s:]+: )(HELM[0-9]+END)\n", line)
        if whole and whole[2] in self.lines:
            return self.lines[whole[2]](len(whole[1]))
        return _TOKEN.sub(lambda it: self.inline[it[0]], line)


def plain(value: Any) -> Any:
    """An object with its generated names as they are before kustomize adds a hash of the
    contents."""
    if isinstance(value, dict):
        return {key: plain(it) for key, it in value.items()}
    if isinstance(value, list):
        return [plain(it) for it in value]
    match = _HASH.match(value) if isinstance(value, str) else None
    return match[1] if match and match[1] in _GENERATED else value


def templates() -> dict[str, str]:
    """The files of `templates/` by name."""
    placed = [(*_place(it), plain(it)) for it in _built(DEPLOY / "overlays" / REGION)]
    to_regions = f"and .Values.edge.enabled (not .Values.router.enabled) {_PEERS}"
    site = _built(DEPLOY / "overlays" / "edge-site")
    (policy,) = (it for it in site if it["metadata"]["name"] == "edge-to-regions")
    placed.append(("edge", to_regions, _in_namespace(policy)))
    for component, name, condition in (
        ("monitoring", "monitoring", ".Values.monitoring.enabled"),
        ("inference-keda", "keda", "and .Values.inference.enabled .Values.inference.keda.enabled"),
    ):
        for file in sorted((DEPLOY / "components" / component).glob("*.yaml")):
            if file.name != "kustomization.yaml":
                things = yaml.safe_load_all(file.read_text("utf-8"))
                placed += [(name, condition, _in_namespace(thing)) for thing in things]
    written: dict[str, list[str]] = {}
    placed.sort(key=lambda it: it[:2])
    for (name, condition), group in itertools.groupby(placed, key=lambda it: it[:2]):
        text = "".join(f"---\n{_template(thing)}" for _, _, thing in group)
        if condition:
            text = f"{{{{- if {condition} }}}}\n{text}{{{{- end }}}}\n"
        written.setdefault(f"{name}.yaml", [_HEAD]).append(text)
    return {name: "".join(parts) for name, parts in written.items()}


def files() -> dict[str, str]:
    """The settings of each role, as they are unless a value replaces them."""
    found = {}
    for role in ROLES:
        text = (DEPLOY / "base" / role / "outrider.toml").read_text("utf-8")
        found[f"{role}.toml"] = text.replace('"local"', '"{{ .Values.region }}"')
    return found


def _built(folder: Path) -> Iterator[Object]:
    return (it for it in yaml.safe_load_all(kustomize.build(folder)) if it)


def _in_namespace(thing: Object) -> Object:
    labels = thing["metadata"].get("labels", {}) | {"mesh-region": REGION}
    return thing | {"metadata": thing["metadata"] | {"namespace": NAMESPACE, "labels": labels}}


def _place(thing: Object) -> tuple[str, str]:
    """The file of a template, and under which condition it is rendered; empty: always."""
    name, kind = thing["metadata"]["name"], thing["kind"]
    if kind == "Namespace":
        return "mesh", ".Values.namespace.create"
    if kind == "CiliumNetworkPolicy":
        return "mesh", ".Values.modelSource.cilium"
    for role in ROLES:
        if name == f"{role}-{REGION}":
            return role, f"and .Values.{role}.enabled .Values.regions.export"
        if name == "inference-between-regions":
            return "inference", f"and .Values.inference.enabled {_PEERS}"
        if name == role or name.startswith(f"{role}-"):
            return role, f".Values.{role}.enabled"
    return "mesh", ""


def _template(thing: Object) -> str:
    tokens = Tokens()
    _with_values(thing, tokens)
    return tokens.written(_with_names(thing, tokens))


def _with_names(value: Any, tokens: Tokens) -> Any:
    """The region and the namespace, wherever they stand."""
    if isinstance(value, dict):
        return {
            key: tokens.put(".Release.Namespace")
            if key == "namespace" and it == NAMESPACE
            else _with_names(it, tokens)
            for key, it in value.items()
        }
    if isinstance(value, list):
        return [_with_names(it, tokens) for it in value]
    if value == REGION:
        return tokens.put(".Values.region | quote")
    if isinstance(value, str) and REGION in value:
        return value.replace(REGION, tokens.put(".Values.region"))
    return value


def _with_values(thing: Object, tokens: Tokens) -> None:
    """What a user may want otherwise, by kind."""
    name, kind = thing["metadata"]["name"], thing["kind"]
    if kind == "Namespace":
        thing["metadata"]["name"] = tokens.put(".Release.Namespace")
    elif kind == "ConfigMap" and name == "mesh":
        thing["data"]["model"] = tokens.put("first .Values.models | quote")
        thing["data"]["models"] = tokens.put('join "," .Values.models | quote')
    elif kind == "ConfigMap":
        role = name.removesuffix("-config")
        text = f'(.Values.{role}.config | default (.Files.Get "files/{role}.toml"))'
        thing["data"]["outrider.toml"] = tokens.put_lines(
            lambda indent: (
                f"{' ' * indent}outrider.toml: |\n"
                f"{' ' * (indent + 2)}{{{{- tpl {text} . | trim | nindent {indent + 2} }}}}\n"
            )
        )
    elif kind == "HorizontalPodAutoscaler":
        for key in ("minReplicas", "maxReplicas"):
            thing["spec"][key] = tokens.put(f".Values.{name}.autoscaling.{key}")
    elif kind == "ScaledObject":
        thing["spec"]["minReplicaCount"] = tokens.put(".Values.inference.keda.minReplicas")
        thing["spec"]["maxReplicaCount"] = tokens.put(".Values.inference.keda.maxReplicas")
        to_zero = yaml.safe_load((_TO_ZERO / "scaled-object.yaml").read_text("utf-8"))["spec"]
        assert to_zero.pop("minReplicaCount") == 0
        thing["spec"]["toZero"] = tokens.if_so(_IS_TO_ZERO, to_zero)
        (trigger,) = thing["spec"]["triggers"]
        trigger["metadata"]["serverAddress"] = tokens.put(".Values.inference.keda.prometheus")
    elif kind == "CiliumNetworkPolicy":
        names = _each(tokens, ".Values.modelSource.names", "matchName")
        thing["spec"]["egress"][1]["toFQDNs"] = [names]
    elif kind == "NetworkPolicy":
        _policy(thing, tokens)
    elif kind in ("Deployment", "StatefulSet"):
        _workload(thing, tokens)


def _policy(thing: Object, tokens: Tokens) -> None:
    name = thing["metadata"]["name"]
    for direction, peers in (("ingress", "from"), ("egress", "to")):
        for rule in thing["spec"].get(direction) or ():
            blocks = [it for it in rule.get(peers, ()) if "ipBlock" in it]
            if not blocks or name == "default-deny":
                continue
            is_edges = name == "router" and direction == "ingress"
            values = ".Values.edgeSites.pods" if is_edges else _PEERS
            others = [it for it in rule[peers] if "ipBlock" not in it]
            rule[peers] = [*others, _each(tokens, values, "ipBlock", "cidr")]
    if name == "inference":
        thing["spec"]["egress"].append(_items(tokens, ".Values.inference.egress"))


def _each(tokens: Tokens, values: str, *keys: str) -> str:
    """An item of a list for each of the values: an object with the value below the keys."""

    def lines(indent: int) -> str:
        item = "{{ . | quote }}"
        for key in reversed(keys[1:]):
            item = f"{{{key}: {item}}}"
        space = " " * indent
        begin, end = f"{space}{{{{- range {values} }}}}\n", f"{space}{{{{- end }}}}\n"
        return f"{begin}{space}- {keys[0]}: {item}\n{end}"

    return tokens.put_lines(lines)


def _items(tokens: Tokens, values: str) -> str:
    """Further items of a list."""

    def lines(indent: int) -> str:
        space = " " * indent
        return (
            f"{space}{{{{- with {values} }}}}\n{space}{{{{- toYaml . | nindent {indent} }}}}\n"
            f"{space}{{{{- end }}}}\n"
        )

    return tokens.put_lines(lines)


def _workload(thing: Object, tokens: Tokens) -> None:
    role = thing["metadata"]["name"]
    values = f".Values.{role}"
    template = thing["spec"]["template"]
    pod = template["spec"]
    # A pod reads its settings when it starts: new ones start new pods, as kustomize's names do.
    template["metadata"]["annotations"] = {
        "checksum/config": tokens.put(
            f'tpl ({values}.config | default (.Files.Get "files/{role}.toml")) . '
            "| cat (toJson .Values.models) .Values.region | sha256sum"
        )
    }
    for container in (*pod.get("initContainers", ()), *pod["containers"]):
        image = container["image"].partition(":")[0]
        if role == "inference" and container["name"] == "inference":
            image = tokens.put(f'{values}.image | default "{image}"')
        registry = tokens.put('with .Values.image.registry }}{{ trimSuffix "/" . }}/{{ end')
        container["image"] = f"{registry}{image}:{tokens.put('.Values.image.tag')}"
    (main,) = pod["containers"]
    main["resources"] = tokens.yaml_of("resources", f"{values}.resources")
    env = main.setdefault("env", [])
    if role == "router":
        patch = yaml.safe_load((_TO_ZERO / "router.yaml").read_text("utf-8"))
        (container,) = patch["spec"]["template"]["spec"]["containers"]
        env.insert(0, tokens.if_so(_IS_TO_ZERO, container["env"]))  # where kustomize has it
    env.append(_items(tokens, f"{values}.env"))
    main["volumeMounts"].append(_items(tokens, f"{values}.volumeMounts"))
    pod["volumes"].append(_items(tokens, f"{values}.volumes"))
    for key in ("nodeSelector", "tolerations"):
        pod[key] = tokens.yaml_of(key, f"{values}.{key}")
    if role == "inference":
        _inference(thing, main, tokens)


def _inference(thing: Object, main: Object, tokens: Tokens) -> None:
    values = ".Values.inference"
    thing["spec"]["replicas"] = tokens.put_lines(
        lambda indent: (
            f"{' ' * indent}{{{{- if not {values}.keda.enabled }}}}\n"
            f"{' ' * indent}replicas: {{{{ {values}.replicas }}}}\n{' ' * indent}{{{{- end }}}}\n"
        )
    )
    for key in ("failureThreshold", "periodSeconds"):
        main["startupProbe"][key] = tokens.put(f"{values}.startupProbe.{key}")
    for volume in thing["spec"]["template"]["spec"]["volumes"]:
        if isinstance(volume, dict) and volume["name"] == "tmp":
            volume["emptyDir"]["sizeLimit"] = tokens.put(f"{values}.tmpSize")
    (claim,) = thing["spec"]["volumeClaimTemplates"]
    claim["spec"]["resources"]["requests"]["storage"] = tokens.put(f"{values}.modelStorage")


def chart_problems() -> list[str]:
    """Whether the written files are what the base makes; empty: they are."""
    problems = []
    for folder, made in (("templates", templates()), ("files", files())):
        written = {it.name: it.read_text("utf-8") for it in (CHART / folder).iterdir()}
        if written != made:
            problems.append(f"helm/outrider/{folder}: run `python -m tools.helm_chart`")
    return problems


def main() -> int:
    for folder, made in (("templates", templates()), ("files", files())):
        for name, text in made.items():
            (CHART / folder / name).write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
