"""What is attacked, and what an attack found."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench.harness.local_mesh import LocalMesh


@dataclass(frozen=True, slots=True)
class Target:
    """A mesh, as a stranger can know it: addresses, and the certificate that everybody has."""

    host: str
    port: int
    """UDP port of the edge."""
    ca: str
    """PEM file of the edge's certificate."""
    services: Mapping[str, int]
    """gRPC port by the process's name; the edge has none."""
    admin_ports: Mapping[str, int]
    """Of the metrics, by the process's name."""
    state_dir: str
    """For attacks by somebody inside, who has a service's certificate."""
    http_port: int = 0
    """TCP port of the edge's HTTP door; 0: it has none."""
    key_file: str = ""
    """With the attacker's own API key, for what only a key lets in."""
    requests_share: float = 1.0
    """Of the requests of each attack on the HTTP door, that many are sent."""

    def to_json(self) -> str:
        """For an attacker's command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Target:
        """What `to_json` made."""
        return cls(**json.loads(text))


def target_of(mesh: LocalMesh) -> Target:
    """A mesh that is up."""
    host, port = mesh.edge
    rows = mesh.state.services
    return Target(
        host=host,
        port=port,
        ca=str(mesh.ca),
        services={row["name"]: row["port"] for row in rows if row["role"] != "edge"},
        admin_ports={row["name"]: row["admin_port"] for row in rows},
        state_dir=str(mesh.state_dir),
        http_port=mesh.state.service("edge").get("http_port") or 0,
    )


def certificate_of(target: Target) -> Path:
    """What clients of the edge trust."""
    return Path(target.ca)


@dataclass(slots=True)
class Findings:
    """What an attack saw that it should not have seen, and what it met in numbers."""

    strangers_words: int = 0
    """Times that some of another client's text, drafts or token counts were disclosed."""
    broken: list[str] = field(default_factory=list)
    """Aims that were missed, a sentence each."""
    done: dict[str, int] = field(default_factory=dict)
    """How much was done, and what was answered: by word."""

    def count(self, what: str, times: int = 1) -> None:
        """Note that something happened."""
        self.done[what] = self.done.get(what, 0) + times
