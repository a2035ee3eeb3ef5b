"""A mesh is upgraded from the earlier version and rolled back, process by process, while chats run:
both are wheels, and each reads the other's keys and files."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.faults.chats import make_reference_chats
from bench.upgrade.__main__ import NUM_TOKENS, there_and_back
from bench.upgrade.rolling import SERVERS_FIRST
from bench.upgrade.versions import install_commit, install_this
from tools.earlier_version import NoHistoryError, earlier_commit

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

_EXPECTED = {"refused", "replica_state", "router_state"}
"""What processes of a mesh log of others that stop and come back."""


async def test_an_upgrade_and_a_roll_back_lose_and_change_nothing(tmp_path: Path) -> None:
    try:
        earlier = install_commit(earlier_commit(), tmp_path / "earlier")
    except NoHistoryError as error:
        pytest.skip(str(error))
    versions = (earlier, install_this(tmp_path / "this"))
    assert versions[0].label != versions[1].label
    references = make_reference_chats("fake", NUM_TOKENS)
    result = await there_and_back(versions, SERVERS_FIRST, references, num_chats=4)
    assert not result.problems
    for rolled in (result.up, result.back):
        assert len(rolled.identities) == 1
        assert all(totals.chats for totals in rolled.totals)
        assert sum(role.num_processes for role in rolled.roles) == 9
    # Files that a version cannot read are logged, and so are messages.
    assert set(result.warnings) <= _EXPECTED
