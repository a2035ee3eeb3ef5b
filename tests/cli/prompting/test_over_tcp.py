"""`outrider chat` where UDP does not get through."""

from __future__ import annotations

import json
import sys
from io import StringIO

import pytest

from outrider.cli.edge_choice import EdgeAddress
from outrider.cli.prompting.chat import ChatCommand, SpeculationMode, Wanted
from outrider.cli.prompting.conversation import Settings
from outrider.client.ways import KnownWays, WayLimits
from outrider.sampling.params import SamplingParams
from services.edge.http.config import HttpConfig
from tests.edge.conftest import mesh, words
from tests.edge.integration.running import REPLY, Running
from tests.edge.integration.ways import ways

__all__ = ["mesh", "words"]


@pytest.mark.edge(http=HttpConfig(port=0, tls="on"))
async def test_it_is_said_once_that_chats_go_over_tcp(
    mesh: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    said, shown = StringIO(), StringIO()
    monkeypatch.setattr("outrider.client.dialling.KNOWN_WAYS", KnownWays(WayLimits()))
    monkeypatch.setattr(sys, "stderr", said)
    monkeypatch.setattr(sys, "stdout", shown)
    async with ways(mesh) as both:
        both.udp.is_cut = True
        address = EdgeAddress("127.0.0.1", both.udp.port, mesh.ca, False, both.tcp.port)
        command = ChatCommand(address, Wanted(True, SpeculationMode.on, thin=False))
        settings = Settings("", "", SamplingParams())
        prompts = ["hello", "hello again"]
        assert await command.answer(prompts, settings, as_json=True, parallel=1) == 0
    assert said.getvalue().count("outrider: QUIC does not get through; this goes over TCP\n") == 1
    lines = [json.loads(it) for it in shown.getvalue().splitlines() if it.startswith("{")]
    assert [it["text"] for it in lines] == [REPLY] * 2
