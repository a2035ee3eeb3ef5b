"""Every method of every service has its row, and answers to no other role."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from grpc_health.v1 import health_pb2

from outrider.errors import PermissionDeniedError
from outrider.tls.access import ACCESS, check
from outrider.tls.identity import PeerIdentity, Role
from outrider.v1 import embedding_pb2, inference_pb2, kv_pb2, router_pb2, tokenizer_pb2

_GUIDE = Path(__file__).parents[2] / "docs/guides/certificates.md"


def _methods() -> set[str]:
    files = (embedding_pb2, inference_pb2, kv_pb2, router_pb2, tokenizer_pb2, health_pb2)
    services = itertools.chain.from_iterable(
        file.DESCRIPTOR.services_by_name.values() for file in files
    )
    return {
        f"/{service.full_name}/{method.name}" for service in services for method in service.methods
    }


def test_every_method_has_a_row_and_every_row_a_method() -> None:
    assert set(ACCESS) == _methods()
    assert all(ACCESS.values())


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("method", sorted(ACCESS))
def test_a_method_answers_to_its_roles_alone(method: str, role: Role) -> None:
    if role in ACCESS[method]:
        check(PeerIdentity(role), method)
    else:
        with pytest.raises(PermissionDeniedError, match=role):
            check(PeerIdentity(role), method)


def test_a_method_without_a_row_answers_to_nobody() -> None:
    for role in Role:
        with pytest.raises(PermissionDeniedError):
            check(PeerIdentity(role), "/outrider.v1.RouterService/New")


def test_the_guide_shows_the_table() -> None:
    rows = {
        cells[1]: {role.strip() for role in cells[2].split(",")}
        for line in _GUIDE.read_text("utf-8").splitlines()
        if len(cells := [cell.strip(" `") for cell in line.split("|")]) == 4
    }
    for method, roles in ACCESS.items():
        shown = {"all"} if roles == frozenset(Role) else {str(role) for role in roles}
        short = method.removeprefix("/").removeprefix("outrider.v1.")
        assert rows.get(short) == shown, short
