"""The edge as a service, with the real vocabulary: start, serve, drain, and refusals to start."""

from __future__ import annotations

import asyncio
import socket
from datetime import UTC, datetime
from pathlib import Path

import pytest

from outrider import config_following
from outrider.cli.local.admin_page import read_page
from outrider.client import Message, SamplingParams, connect
from outrider.config_following import ConfigSource
from outrider.errors import ConfigError, UnknownModelError
from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.vocabulary import Vocabulary
from outrider.testing import leak_check
from services.edge.app import serve
from services.edge.config import EdgeConfig
from services.edge.drafter.metrics import DrafterState
from services.edge.drafter.settings import DrafterConfig
from services.edge.quic import certificate
from tests.edge.integration.region import Region, serving
from tests.edge.integration.running import Running
from tests.edge.integration.trouble import said
from tests.service import refusal, running_service

REPLY = (
    "Ça alors! The first train 🚂 leaves at 7:05, the second train 🚂 leaves at 7:35, "
    "the third train 🚂 leaves at 8:05.\n\n    def next_train():\n        return 猫"
)


@pytest.mark.model
async def test_a_whole_life(vocabulary: Vocabulary, tmp_path: Path) -> None:
    chain, key = certificate.ensure(tmp_path / "own", (), datetime.now(UTC))
    region = Region(vocabulary, REPLY)
    async with leak_check(), serving(region) as region_port:
        config = EdgeConfig(
            port=0,
            routers=(f"127.0.0.1:{region_port}",),
            state_dir=tmp_path / "unused",
            certificate=chain,
            private_key=key,
            log_level="error",
            anonymous=True,
        )
        async with (
            running_service(serve, config) as bound,
            connect("localhost", bound.main, ca=chain) as client,
        ):
            for provisional in (True, False):
                sampling = SamplingParams(max_tokens=500)
                ask = [Message("user", "When do trains leave?")]
                assert (
                    await said(client.chat(ask, sampling=sampling, provisional=provisional))
                    == REPLY
                )
    assert not (tmp_path / "unused").exists()


@pytest.mark.model
async def test_a_file_that_is_refused_is_told_to_who_wrote_it(
    vocabulary: Vocabulary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config_following, "POLL_S", 0.02)
    file = tmp_path / "edge.toml"
    file.write_text("[edge]\n")
    async with leak_check(), serving(Region(vocabulary, REPLY)) as region_port:
        flags = {"port": 0, "routers": f"127.0.0.1:{region_port}", "state_dir": str(tmp_path)}
        source = ConfigSource(EdgeConfig, "edge", file, flags | {"log_level": "critical"})
        async with running_service(serve, source.read().config, source=source) as bound:
            file.write_text('[edge]\nmodels = ["gpt-9"]\n')
            assert "gpt-9" in await refusal(bound, file)
            served = f'outrider_edge_served_models{{model="{DEFAULT_MODEL.name}"}} 1'
            assert served in await asyncio.to_thread(read_page, "127.0.0.1", bound.admin)


async def test_an_unknown_model_is_no_edge(tmp_path: Path) -> None:
    with pytest.raises(UnknownModelError):
        await serve(EdgeConfig(models=("gpt-9",), state_dir=tmp_path, log_level="error"))


@pytest.mark.model
async def test_a_certificate_that_cannot_be_read(vocabulary: Vocabulary, tmp_path: Path) -> None:
    broken = tmp_path / "broken.pem"
    broken.write_text("no certificate")
    config = EdgeConfig(port=0, certificate=broken, private_key=broken, log_level="error")
    async with leak_check():
        with pytest.raises(ConfigError, match=r"broken\.pem"):
            await serve(config)


async def test_a_certificate_and_the_key_of_another(tmp_path: Path) -> None:
    chain, _ = certificate.ensure(tmp_path / "one", (), certificate.utc_now())
    _, key = certificate.ensure(tmp_path / "other", (), certificate.utc_now())
    config = EdgeConfig(port=0, certificate=chain, private_key=key, log_level="error")
    async with leak_check():
        with pytest.raises(ConfigError, match="no pair"):
            await serve(config)


async def test_a_port_that_is_taken(vocabulary: Vocabulary, tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        config = EdgeConfig(port=port, state_dir=tmp_path, log_level="error")
        async with leak_check():
            with pytest.raises(ConfigError, match=f"UDP 127.0.0.1:{port} .* set another port"):
                await serve(config)


@pytest.mark.edge(drafter=DrafterConfig(model="none", ready_wait_s=3600.0))
async def test_an_edge_waits_for_its_first_drafter_alone(mesh: Running) -> None:
    """One that is started again later is no reason to send clients elsewhere."""
    first = mesh.edge.models.first
    assert first is not None
    drafter = first.drafter
    seen = []
    for state in (DrafterState.STARTING, DrafterState.READY, DrafterState.STARTING):
        drafter.state = state
        seen.append(mesh.edge._ready())
    assert seen == [(False, "the drafter loads its model"), (True, "serving"), (True, "serving")]


@pytest.mark.edge(drafter=DrafterConfig(model="none", ready_wait_s=0.0))
async def test_an_edge_that_is_not_to_wait_is_ready_without_its_drafter(mesh: Running) -> None:
    first = mesh.edge.models.first
    assert first is not None
    first.drafter.state = DrafterState.STARTING
    assert mesh.edge._ready() == (True, "serving")
