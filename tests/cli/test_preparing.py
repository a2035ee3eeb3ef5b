"""What `outrider up` checks before it starts anything."""

from __future__ import annotations

import importlib.util
import socket

import pytest

from outrider.cli.local.preparing import check_packages, check_ports
from outrider.errors import ConfigError, UnavailableError

HOST = "127.0.0.1"


@pytest.mark.parametrize(
    ("kind", "flag"), [(socket.SOCK_DGRAM, "--port"), (socket.SOCK_STREAM, "--http-port")]
)
def test_a_port_that_is_taken_is_said_before_models_are_loaded(
    kind: socket.SocketKind, flag: str
) -> None:
    with socket.socket(socket.AF_INET, kind) as taken:
        taken.bind((HOST, 0))
        if kind is socket.SOCK_STREAM:
            taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UnavailableError, match=f"port {port} .*another {flag},"):
            _check(flag, port, 1)
        with pytest.raises(UnavailableError, match=f"another {flag},"):
            _check(flag, port - 1, 2)  # the second edge's
    _check(flag, 0, 2)


def _check(flag: str, port: int, count: int) -> None:
    if flag == "--port":
        check_ports(HOST, port, None, count)
    else:
        check_ports(HOST, 0, port, count)


def test_packages_that_are_missing_are_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    check_packages("openvino")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"aioquic, starlette, openvino, llguidance; .*\[all\]"):
        check_packages("openvino")
    with pytest.raises(ConfigError, match="aioquic, starlette; "):
        check_packages("fake")
