"""What routers are told of a replica's model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from outrider.engines.fake import FakeEngine
from services.inference.call_record import CallRecord
from services.inference.static_prefixes.prefixes import StaticPrefix
from services.inference.streaming.wire import model_response
from tests.inference.harness import loaded
from tests.mesh import running_replica


async def test_routers_can_read_prompts_in_ranks_and_learn_what_is_pinned(tmp_path: Path) -> None:
    prefix = StaticPrefix("p", ("acme",), (1, 2, 3))
    model = replace(loaded(FakeEngine(), prefixes=(prefix,)), tokens_digest=b"t" * 32)
    async with running_replica(model, is_started=False) as made:
        told = model_response(made.replica.table.contract, CallRecord(tmp_path, "r"))
    assert told.tokens_digest == b"t" * 32, "of the rank table that the prompts are in"
    (pinned,) = told.static_prefixes
    assert (pinned.name, pinned.tokens, list(pinned.tenants)) == ("p", 3, ["acme"])
