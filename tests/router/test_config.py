"""The router's settings: what a TOML file can say, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.config import load
from outrider.errors import ConfigError
from services.router.config import RouterConfig
from services.router.fleet.entries import RegionConfig, ReplicaConfig, ReplicaTarget

TWO_REGIONS = """
[router]
region = "us-east"
tokenizers = ["127.0.0.1:7100", "127.0.0.1:7101"]

[[router.replicas]]
name = "us-0"
region = "us-east"
address = "127.0.0.1:7001"

[[router.replicas]]
name = "us-1"
region = "us-east"
address = "127.0.0.1:7002"

[[router.replicas]]
name = "eu-0"
region = "eu-west"
address = "127.0.0.1:7003"
model = "smollm2-135m-instruct"

[[router.regions]]
name = "us-east"
latitude = 39.0
longitude = -77.5

[[router.regions]]
name = "eu-west"
latitude = 53.3
longitude = -6.3
"""


def test_a_file_lists_replicas_of_two_regions(tmp_path: Path) -> None:
    file = tmp_path / "outrider.toml"
    file.write_text(TWO_REGIONS)
    config = load(RouterConfig, "router", file=file, environ={}, flags={"port": 7000})
    assert config.port == 7000
    assert [(r.name, r.region) for r in config.replicas] == [
        ("us-0", "us-east"),
        ("us-1", "us-east"),
        ("eu-0", "eu-west"),
    ]
    assert config.replicas[2].model == "smollm2-135m-instruct"
    assert config.tokenizers == ("127.0.0.1:7100", "127.0.0.1:7101")
    assert config.regions[1] == RegionConfig("eu-west", 53.3, -6.3)


def test_two_replicas_cannot_share_a_name() -> None:
    replica = ReplicaConfig("a", "us-east", "h:1")
    with pytest.raises(ConfigError, match="share the replica name a"):
        RouterConfig(replicas=(replica, replica))


@pytest.mark.parametrize("field", ["name", "region", "address"])
def test_a_replica_needs_every_field(field: str) -> None:
    values = {"name": "a", "region": "us-east", "address": "h:1"} | {field: ""}
    with pytest.raises(ConfigError, match=f"no {field}"):
        ReplicaConfig(**values)


def test_addresses_are_host_and_port() -> None:
    with pytest.raises(ConfigError, match="address of replica a must be host:port"):
        ReplicaConfig("a", "us-east", "here")
    with pytest.raises(ConfigError, match="tokenizers must be host:port"):
        RouterConfig(tokenizers=("there",))


@pytest.mark.parametrize(("latitude", "longitude"), [(91.0, 0.0), (0.0, 200.0), (float("nan"), 0)])
def test_coordinates_are_degrees(latitude: float, longitude: float) -> None:
    with pytest.raises(ConfigError, match=r"region x: l[a-z]+itude is .*; use -"):
        RegionConfig("x", latitude, longitude)


@pytest.mark.parametrize(
    ("field", "value"),
    [("max_sessions", 0), ("probe_interval_s", -1.0), ("port", 70000)],
)
def test_absurd_values_are_refused(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=field):
        RouterConfig(**{field: value})  # type: ignore[arg-type]


def test_what_is_looked_up_is_told_from_what_is_configured() -> None:
    config = RouterConfig(
        replica_targets=(
            ReplicaTarget("dns:inference:7300", "us"),
            ReplicaTarget("srv:_grpc._tcp.x", "eu"),
        )
    )
    assert config.discovery.interval_s == 5.0
    with pytest.raises(ConfigError, match=r"h:1 in replica_targets is one address"):
        ReplicaTarget("h:1", "us")


def test_silence_is_longer_than_the_pause_between_two_reports() -> None:
    with pytest.raises(ConfigError, match="every replica would be suspect between two reports"):
        RouterConfig(silence_s=1.0, heartbeat_ms=1000)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[router.admission]\nslo_ttft_hihg_ms = 1", "did you mean slo_ttft_high_ms"),
        ("[router.admission]\nmax_waiting = 0", "admission.max_waiting is 0; use 1 or more"),
        ('[[router.tenants]]\nname = "a"\ntier = "gold"', "tier of tenant a is 'gold'"),
        ('[[router.tenants]]\nname = "a"\n[[router.tenants]]\nname = "a"', "tenant name a"),
        (
            "[router.autoscale]\nmax_late_share = 2.0",
            "max_late_share is 2; use more than 0",
        ),
        ("[router.autoscale]\nmax_step = 1.0", "autoscale.max_step is 1; use more than 1"),
        ('[router.wake_up]\nmodels = [""]', "wake_up.models has an empty name"),
        (
            "[router.lengths]\nlow_above_tokens = -1",
            "low_above_tokens is -1; use 0 or more",
        ),
        ("[router.placement]\nnear_ms = -0.1", "placement.near_ms is -0.1; use 0 or more"),
        ("[router.discovery]\ninterval_s = 0.0", "discovery.interval_s is 0; use more than 0"),
        ("[router.admin]\nport = 70000", "admin.port is 70000; use 0 to 65535"),
        ("[router]\nadmin_port = 1", "did you mean admin.port"),
        ("[router.quarantine]\nwindow_s = 0.0", "quarantine.window_s is 0; use more than 0"),
        ("[router.hang]\nnum_calls = -1.0", "hang.num_calls is -1; use more than 0"),
        ("[router.failover]\nmin_moves = 0", "failover.min_moves is 0; use 1 or more"),
        ("[router.prefix_index]\nmax_blocks = 0", "prefix_index.max_blocks is 0; use 1 or more"),
    ],
)
def test_their_mistakes_are_named(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "outrider.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=said):
        load(RouterConfig, "router", file=file, environ={})
