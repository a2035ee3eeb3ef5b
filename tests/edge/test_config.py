"""The edge's settings: defaults that work, and refusals that name the field."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.config import load
from outrider.errors import ConfigError
from outrider.peers.targets import Lookup
from outrider.tokenization.rewriting import RewritingPolicy
from services.edge.config import EdgeConfig, default_state_dir
from services.edge.session.control.controller import ControlPolicy, Uploads


def test_defaults_listen_on_loopback() -> None:
    config = EdgeConfig()
    assert config.host == config.admin_host == "127.0.0.1"
    assert config.reply_policy().display.theta == 0.6
    assert config.reply_policy().display.rewrite_interval_s == 0.15
    assert config.reply_policy().control == ControlPolicy()


def test_who_decides_on_uploads_can_be_set() -> None:
    assert EdgeConfig(uploads="never").reply_policy().control.uploads is Uploads.NEVER


def test_environment_and_file(tmp_path: Path) -> None:
    file = tmp_path / "outrider.toml"
    file.write_text('[edge]\nport = 1\nrouters = ["a:1", "b:2"]\nregion = "eu-west"\n')
    config = load(EdgeConfig, "edge", file=file, environ={"OUTRIDER_EDGE_PORT": "2"})
    assert (config.port, config.routers, config.region) == (2, ("a:1", "b:2"), "eu-west")


def test_rewriting_is_a_table_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "outrider.toml"
    file.write_text('[edge]\nport = 1\n[edge.rewriting]\ntoo_long = "keep_turns"\n')
    config = load(EdgeConfig, "edge", file=file, environ={})
    assert config.rewriting == RewritingPolicy(too_long="keep_turns")
    assert EdgeConfig().rewriting == RewritingPolicy()


def test_routers_may_be_looked_up() -> None:
    config = EdgeConfig(routers=("a:1", "dns:b:2", "srv:_grpc._tcp.c"), suspect_s=3.0)
    policy = config.upstream_policy()
    assert [target.lookup for target in policy.targets] == list(Lookup)
    assert policy.health.suspect_s == 3.0


def test_how_bold_the_display_is_has_a_name_and_values_of_its_own() -> None:
    def thetas(config: EdgeConfig) -> tuple[float, float]:
        display = config.reply_policy().display
        return display.first_theta, display.theta

    assert thetas(EdgeConfig()) == (0.5, 0.6)
    assert thetas(EdgeConfig(display="shy")) == (0.7, 0.7)
    assert thetas(EdgeConfig(display="eager")) == (0.3, 0.4)
    assert thetas(EdgeConfig(display="eager", first_theta=0.6)) == (0.6, 0.4)
    assert thetas(EdgeConfig(theta=0.9)) == (0.5, 0.9)


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
        ({"max_frame_bytes": 4 << 20}, "max_frame_bytes"),
        ({"certificate": Path("c.pem")}, "private_key"),
        ({"theta": 0.0}, "theta"),
        ({"first_theta": 1.1}, "first_theta"),
        ({"display": "bold"}, "shy, balanced, eager"),
        ({"line_theta": 2.0}, "line_theta"),
        ({"uploads": "sometimes"}, "uploads"),
        ({"min_survival": 1.5}, "min_survival"),
        ({"routers": ("dns:router",)}, "routers must be host:port"),
        ({"probe_timeout_s": 0.0}, "probe_timeout_s"),
        ({"lookup_grace_s": -1.0}, "lookup_grace_s"),
        ({"max_connections": 0}, "max_connections"),
        ({"drain_s": -1.0}, "drain_s"),
        ({"max_lead": 1 << 16}, "max_lead"),
    ],
)
def test_values_that_cannot_work(values: dict[str, object], field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        EdgeConfig(**values)  # type: ignore[arg-type]
