"""What one of several processes of an edge has: together never more than the settings say."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.errors import ConfigError
from services.edge.chat.resumption_table import ResumeLimits
from services.edge.config import EdgeConfig
from services.edge.http.config import HttpConfig
from services.edge.limits.listener import ListenerLimits
from services.edge.processes.share import share_of

COUNT = 4
CONFIG = EdgeConfig(
    processes=COUNT,
    state_dir=Path("/state"),
    http=HttpConfig(port=0, max_connections=10),
    quic=ListenerLimits(max_connections=100, max_half_open=7, max_chats_per_client=3),
    resumption=ResumeLimits(max_detached=9, max_bytes=1000),
)


def test_bounds_of_the_edge_are_divided_and_those_of_a_client_are_not() -> None:
    shares = [share_of(CONFIG, process) for process in range(COUNT)]
    for table, key in (
        ("quic", "max_connections"),
        ("quic", "max_half_open"),
        ("quic", "max_received_bytes"),
        ("http", "max_connections"),
        ("resumption", "max_detached"),
        ("resumption", "max_bytes"),
    ):
        parts = [getattr(getattr(share, table), key) for share in shares]
        assert 0 < sum(parts) <= getattr(getattr(CONFIG, table), key), key
    assert {share.quic.max_chats_per_client for share in shares} == {3}
    assert sum(share.listener_limits().max_resident_bytes for share in shares) <= (
        EdgeConfig().listener_limits().max_resident_bytes
    )


def test_all_have_one_certificate_and_one_file_of_keys_and_learn_for_themselves() -> None:
    shares = [share_of(CONFIG, process) for process in range(COUNT)]
    assert {share.keys_file for share in shares} == {CONFIG.keys_file}
    assert len({share.learnt_folder for share in shares}) == COUNT
    assert shares[0].learnt_folder == CONFIG.learnt_folder
    assert shares[0].certificate is None
    assert {share.certificate for share in shares[1:]} == {Path("/state/tls/cert.pem")}
    assert {share.admin.port for share in shares} == {0}


@pytest.mark.parametrize("count", [0, 65])
def test_how_many_there_may_be(count: int) -> None:
    with pytest.raises(ConfigError, match="processes"):
        EdgeConfig(processes=count)
