"""What one of several processes of a router has: together never more than the settings say."""

from __future__ import annotations

import pytest

from outrider.errors import ConfigError
from services.router.admission.tenants import TenantPolicy
from services.router.config import RouterConfig
from services.router.processes.share import share_of


def test_limits_are_divided_to_the_last_session() -> None:
    tenants = (
        TenantPolicy("acme", max_sessions=7, tokens_per_minute=1001),
        TenantPolicy("*", max_sessions=0),
    )
    config = RouterConfig(port=7100, processes=3, tenants=tenants, max_sessions=100)
    shares = [share_of(config, process, 7100 + process) for process in range(3)]
    assert [share.port for share in shares] == [7100, 7101, 7102]
    assert [share.tenants[0].max_sessions for share in shares] == [3, 2, 2]
    assert sum(share.tenants[0].tokens_per_minute for share in shares) <= 1001
    assert {share.tenants[1].max_sessions for share in shares} == {0}, "no limit stays none"
    assert sum(share.max_sessions for share in shares) <= 100
    assert sum(share.prompt_memory_bytes for share in shares) <= config.prompt_memory_bytes
    assert sum(share.embedding.max_inputs for share in shares) <= config.embedding.max_inputs
    assert sum(share.embedding.max_bytes for share in shares) <= config.embedding.max_bytes
    assert sum(share.admission.max_waiting for share in shares) <= config.admission.max_waiting


def test_no_memory_of_prompts_stays_none() -> None:
    config = RouterConfig(port=7100, processes=3, prompt_memory_bytes=0)
    assert share_of(config, 1, 7101).prompt_memory_bytes == 0


def test_a_limit_that_cannot_be_divided_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_sessions of tenant acme is 2"):
        RouterConfig(processes=3, tenants=(TenantPolicy("acme", max_sessions=2),))
    with pytest.raises(ConfigError, match="port"):
        RouterConfig(processes=3, port=65534)
