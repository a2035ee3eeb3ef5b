"""Every port of every service, and every frame that a client may send first, stands in the guide
with who may call it."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from outrider.v1 import edge_pb2
from services.edge.config import EdgeConfig
from services.inference.config import InferenceConfig
from services.router.config import RouterConfig
from services.tokenizer.config import TokenizerConfig
from services.tokenizer_worker.config import TokenizerWorkerConfig

GUIDE: Final = Path(__file__).parents[2] / "docs" / "guides" / "access.md"
_LIKE: Final = ("edge", "router", "tokenizer", "tokenizer_worker")
ROWS: Final = {
    "edge.port": "edge, QUIC",
    "edge.http.port": "edge, HTTP",
    "router.port": "router, replica, tokenizer: gRPC",
    "inference.port": "router, replica, tokenizer: gRPC",
    "tokenizer.port": "router, replica, tokenizer: gRPC",
    "tokenizer.worker_port": "tokenizer, `worker_port`",
    **{f"{role}.admin.port": "all, admin port" for role in _LIKE},
    "inference.admin.port": "all, admin port",
}
"""By setting, the row of the table."""
FRAMES: Final = {
    "chat": "a chat, its resumption, typed text",
    "typed": "a chat, its resumption, typed text",
    "describe": "DESCRIBE",
    "tokenize": "ids of a text",
    # These go on with what a chat's first frame began.
    "cancel": "",
    "acknowledge": "",
}


def ports(config: type, where: str) -> Iterator[str]:
    """Settings that name a port to listen on."""
    for name, kind in typing.get_type_hints(config).items():
        if name == "port" or name.endswith("_port"):
            yield f"{where}.{name}"
        elif dataclasses.is_dataclass(kind) and isinstance(kind, type):
            yield from ports(kind, f"{where}.{name}")


def table() -> str:
    return GUIDE.read_text("utf-8").partition("## Every listener")[2]


def test_every_port_is_listed() -> None:
    configs = {
        "edge": EdgeConfig,
        "router": RouterConfig,
        "tokenizer": TokenizerConfig,
        "tokenizer_worker": TokenizerWorkerConfig,
        "inference": InferenceConfig,
    }
    found = {port for role, config in configs.items() for port in ports(config, role)}
    assert {"edge.port", "tokenizer.worker_port", "inference.admin.port"} <= found <= ROWS.keys()
    for port in found:
        assert f"| {ROWS[port]}" in table(), port


def test_every_frame_is_listed() -> None:
    kinds = {field.name for field in edge_pb2.ClientFrame.DESCRIPTOR.oneofs_by_name["kind"].fields}
    assert kinds == FRAMES.keys()
    assert all(row in table() for row in FRAMES.values())
