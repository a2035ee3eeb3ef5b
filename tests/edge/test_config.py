"""The edge's settings: defaults that work, and refusals that name the field."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from outrider.access.api_keys import KeyTable
from outrider.config import load
from outrider.errors import ConfigError, UnauthenticatedError, UnknownModelError
from outrider.load_table import LoadLimits
from outrider.models.definitions import EngineDefaults, ModelCatalog, ModelSpec
from outrider.peers.membership import Lookup
from services.edge.access.identity import Credential, TenantConfig
from services.edge.config import EdgeConfig, default_state_dir
from services.edge.drafter.settings import DrafterConfig
from services.edge.limits.listener import ListenerLimits
from services.edge.limits.quotas import Count, Rate, RateLimit
from services.edge.models.keys import EdgeModel, ModelKey
from services.edge.models.settings import DEFAULT_CONTEXT_TOKENS
from services.edge.session.upload_control import UploadPolicy
from tests.api_keys import key_of, text_of


def test_defaults_listen_on_loopback() -> None:
    config = EdgeConfig()
    assert config.host == config.admin.host == "127.0.0.1"
    assert config.model_settings().reply.upload == UploadPolicy()


CATALOG = ModelCatalog(
    (
        ModelSpec("small", "file:/s"),
        ModelSpec("long", "file:/l", max_context_tokens=512, draft="small"),
        ModelSpec("plain", "file:/p", draft="none"),
    ),
    "small",
)


def drafts(config: EdgeConfig) -> dict[str, str]:
    return {model.spec.name: model.draft for model in config.edge_models(CATALOG)}


def context_tokens(spec: ModelSpec, at_most: int = 0) -> int:
    return EdgeConfig(max_context_tokens=at_most).model_settings().context_tokens(spec)


def test_a_models_definition_gives_draft_and_context() -> None:
    config = EdgeConfig(models=("long", "plain"))
    (long, plain) = config.edge_models(CATALOG)
    assert (long.draft, long.draft_spec) == ("small", CATALOG.lookup("small"))
    assert (plain.draft, plain.draft_spec) == ("none", None)
    longer = ModelSpec("m", "file:/m", max_context_tokens=32_768)
    assert [context_tokens(spec) for spec in (long.spec, plain.spec, longer)] == [
        512,
        DEFAULT_CONTEXT_TOKENS,
        32_768,
    ]
    assert context_tokens(long.spec, 64) == 64
    assert context_tokens(longer, 9000) == 9000
    assert drafts(EdgeConfig()) == {"small": ""}
    with pytest.raises(UnknownModelError, match="use one of small, long, plain"):
        EdgeConfig(models=("small", "gpt-9")).edge_models(CATALOG)


def test_the_configured_draft_is_the_first_models_and_none_is_all_models() -> None:
    named = DrafterConfig(model="/d.gguf")
    assert drafts(EdgeConfig(models=("small", "long"), drafter=named)) == {
        "small": "/d.gguf",
        "long": "small",
    }
    nothing = DrafterConfig(model="none")
    assert set(drafts(EdgeConfig(models=("small", "long"), drafter=nothing)).values()) == {"none"}
    models = EdgeConfig(drafter=named).model_settings()
    settings = models.drafter_of("long", "small", "/definitions")
    assert (settings.model, settings.drafter.model) == ("long", "small")
    assert settings.definitions_file == "/definitions"


def test_a_model_is_another_one_when_what_an_edge_makes_of_it_changes() -> None:
    def key(spec: ModelSpec, draft: str = "") -> ModelKey:
        return EdgeModel(spec, draft, None).key

    spec = ModelSpec("m", "file:/m")
    assert key(spec) == key(replace(spec, tested=True, engine=EngineDefaults("f32")))
    others = [
        key(replace(spec, source="file:/n")),
        key(replace(spec, stop_tokens=("x",))),
        key(replace(spec, max_context_tokens=9)),
        key(spec, "d"),
        EdgeModel(spec, "d", ModelSpec("d", "file:/d")).key,
        EdgeModel(spec, "d", ModelSpec("d", "file:/e")).key,
    ]
    assert len({key(spec), *others}) == len(others) + 1


def test_how_models_are_loaded_is_a_table_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "outrider.toml"
    file.write_text("[edge]\n[edge.loading]\nmax_waiting = 3\n")
    assert load(EdgeConfig, "edge", file=file, environ={}).loading == LoadLimits(max_waiting=3)


def test_environment_and_file(tmp_path: Path) -> None:
    file = tmp_path / "outrider.toml"
    file.write_text('[edge]\nport = 1\nrouters = ["a:1", "b:2"]\nregion = "eu-west"\n')
    config = load(EdgeConfig, "edge", file=file, environ={"OUTRIDER_EDGE_PORT": "2"})
    assert (config.port, config.routers, config.region) == (2, ("a:1", "b:2"), "eu-west")


def test_tenants_are_an_array_of_tables(tmp_path: Path) -> None:
    file = tmp_path / "outrider.toml"
    tables = '[[edge.tenants]]\nname = "acme"\nmax_sessions = 3\ntrust = "user"\n'
    file.write_text(f"[edge]\n{tables}")
    identities = load(EdgeConfig, "edge", file=file, environ={}).identities()
    identities.set_keys(KeyTable([key_of("k", "acme")]))
    found = identities.of(Credential(text_of("k"), "ann"), b"", b"")
    assert (found.tenant, found.limits.max_sessions) == ("acme", 3)
    with pytest.raises(UnauthenticatedError):
        identities.of(Credential(), b"", b"")
    file.write_text(f"[edge]\n{tables}{tables}")
    with pytest.raises(ConfigError, match="named twice"):
        load(EdgeConfig, "edge", file=file, environ={})


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"models": ("a", "a")}, "twice"),
        ({"anonymous_models": ("b",) * 300}, "anonymous_models are 300, at most 256"),
        ({"anonymous_models": ("",)}, "names of 1 to 128"),
        ({"max_loaded_models": 0}, "max_loaded_models is 0; use 1 or more"),
        ({"trust": "user"}, "a tenant's key"),
        ({"trust": "nobody"}, "chat, connection, user, tenant"),
        ({"max_priority": "top"}, "low, medium or high"),
        ({"tenants": (TenantConfig("t"), TenantConfig("t"))}, "named twice"),
    ],
)
def test_models_and_identities_that_cannot_be(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        EdgeConfig(**settings)


def test_routers_may_be_looked_up() -> None:
    config = EdgeConfig(routers=("a:1", "dns:b:2", "srv:_grpc._tcp.c"), suspect_s=3.0)
    policy = config.upstream_policy()
    assert [target.lookup for target in policy.targets] == list(Lookup)
    assert policy.health.suspect_s == 3.0


def test_the_state_directory_follows_xdg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert default_state_dir() == Path("/state/outrider/edge")


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"port": 70_000}, "port"),
        ({"routers": ()}, "routers"),
        ({"routers": ("router",)}, "routers must be host:port"),
        # A router refuses larger messages, and with them the stream of every chat.
        ({"quic.max_frame_bytes": 4 << 20}, "max_frame_bytes"),
        ({"certificate": Path("c.pem")}, "private_key"),
        ({"display.threshold": 0.0}, "threshold"),
        ({"display.first_threshold": 1.1}, "first_threshold"),
        ({"display.line_threshold": 2.0}, "line_threshold"),
        ({"uploads": "sometimes"}, "uploads"),
        ({"drafts.min_survival": 1.5}, "min_survival"),
        ({"routers": ("dns:router",)}, "routers must be host:port"),
        ({"probe_timeout_s": 0.0}, "probe_timeout_s"),
        ({"discovery.grace_s": -1.0}, r"discovery\.grace_s"),
        ({"quic.max_connections": 0}, "max_connections"),
        ({"quic.ipv6_prefix_bits": 129}, "ipv6_prefix_bits"),
        ({"quic.max_received_bytes_per_address": 1 << 16}, "max_received_bytes_per_address"),
        ({"quic.handshakes_per_s": 0.0}, "handshakes_per_s"),
        ({"quic.loop_share_per_address": 0.0}, "loop_share_per_address"),
        ({"quic.loop_share_per_address": 1.5}, "loop_share_per_address"),
        ({"tokenization.threads": 0}, r"tokenization\.threads"),
        ({"resumption.window_s": -1.0}, r"resumption\.window_s"),
        ({"drafter.kv_bytes": 0}, r"drafter\.kv_bytes"),
        ({"drain_s": -1.0}, "drain_s"),
        ({"loading.retry_s": -1.0}, r"loading\.retry_s"),
        ({"jwt.clock_skew_s": 601.0}, r"jwt\.clock_skew_s"),
        ({"shared_limits.timeout_ms": 0.0}, r"shared_limits\.timeout_ms"),
        ({"http.max_choices": 0}, r"http\.max_choices"),
        ({"http.default_max_tokens": -1}, r"http\.default_max_tokens"),
        ({"http.port": 65_536}, r"http\.port"),
        ({"http3.max_headers": 0}, r"http3\.max_headers"),
        ({"learnt.save_interval_s": 0.0}, r"learnt\.save_interval_s"),
        ({"mirrors.connections": 65}, r"mirrors\.connections"),
        ({"drafts.max_lead": 1 << 16}, "max_lead"),
    ],
)
def test_values_that_cannot_work(values: dict[str, object], field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        load(EdgeConfig, "edge", environ={}, flags=values)


def test_an_address_has_its_share_and_the_door_its_figures() -> None:
    limits = EdgeConfig(
        quic=ListenerLimits(max_chats_per_address=3, handshakes_per_s=10.0)
    ).listener_limits()
    assert limits.quotas.counts[Count.CHATS] == 3
    assert limits.quotas.rates[Rate.HANDSHAKES] == RateLimit(10.0, 50.0)
    # A whole context and a whole frame fit.
    assert limits.quotas.rates[Rate.PREFILL_TOKENS].burst >= DEFAULT_CONTEXT_TOKENS
    assert limits.quotas.rates[Rate.TYPED_BYTES].burst >= EdgeConfig().quic.max_frame_bytes
    assert limits.handshakes.retry_from_half_open == 64
    assert limits.handshakes.max_resident_bytes > 0, "a part of what the machine has"
    always = EdgeConfig(quic=ListenerLimits(validate_addresses=True)).listener_limits()
    assert always.handshakes.retry_from_half_open == 0
    assert (
        EdgeConfig(quic=ListenerLimits(max_resident_bytes=5)).listener_limits().max_resident_bytes
        == 5
    )
