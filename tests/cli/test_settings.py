"""What `outrider up` passes to its services, and that nothing secret is on a command line."""

from __future__ import annotations

import stat
import tomllib
from pathlib import Path

import pytest

from outrider.cli.local import mesh, settings
from outrider.cli.local.certificates import OPERATOR, Certificates, forget, of_process
from outrider.cli.local.mesh import ROLES, MeshOptions, ProcessSpec, ServedModel, completed, to_toml
from outrider.cli.local.state import default_state_dir, holding, make_private, write_private
from outrider.config import load
from outrider.errors import ConfigError, UnavailableError
from outrider.tls import PeerIdentity, Role, Tls, TlsConfig
from services.edge.config import EdgeConfig
from tests.cli.invoking import invoke


def test_settings_have_the_types_of_their_service() -> None:
    assert settings.typed(
        "edge", ["quic.max-connections=7", "display.threshold=0.7", "anonymous=no"]
    ) == {
        "quic": {"max_connections": 7},
        "display": {"threshold": 0.7},
        "anonymous": False,
    }
    assert settings.typed("edge", ["routers=a:1,b:2", "http.port="]) == {
        "routers": ("a:1", "b:2"),
        "http": {"port": None},
    }
    for key, meant in (
        ("display.thresold", "threshold"),
        ("nam", "name"),
        ("threshold", "display.threshold"),
    ):
        known = rf"--set edge\.{key}: .* did you mean {meant}"
        with pytest.raises(
            ConfigError, match=known.replace("display.threshold", r"display\.threshold")
        ):
            settings.typed("edge", [f"{key}=1"])


def test_secrets_are_refused_on_command_lines() -> None:
    with pytest.raises(ConfigError, match="cache_salt_key is a secret"):
        settings.typed("edge", ["cache_salt_key=x"])
    assert settings.typed("edge", ["private_key=/k.pem"]) == {"private_key": Path("/k.pem")}
    failed = invoke(["serve", "tokenizer", "--set", "shared-cache.key=x"])
    assert isinstance(failed.exception, ConfigError)


def test_a_file_gives_what_belongs_on_no_command_line(tmp_path: Path) -> None:
    file = tmp_path / "more.toml"
    file.write_text(
        '[edge]\ncache_salt_key = "s\\"\\n"\n[edge.quic]\nmax_connections = 3\n', "utf-8"
    )
    told = settings.read(file, ROLES)
    spec = ProcessSpec("edge", "edge", {"port": 0})
    tls = TlsConfig(Path("/c"), Path("/k"), Path("/ca"))
    written = tmp_path / "edge.toml"
    write_private(written, to_toml(completed(spec, told["edge"], tls)))
    assert stat.S_IMODE(written.stat().st_mode) == 0o600
    config = load(EdgeConfig, "edge", file=written, environ={})
    assert (config.cache_salt_key, config.quic.max_connections) == ('s"\n', 3)
    assert config.tls == tls
    file.write_text("[egde]\n", "utf-8")
    with pytest.raises(ConfigError, match="not egde"):
        settings.read(file, ROLES)


def test_tables_of_tables_survive(tmp_path: Path) -> None:
    table = tomllib.loads('[router]\n[[router.tenants]]\nname = "a"\n')["router"]
    text = to_toml(completed(ProcessSpec("router", "router", {"port": 1}), table, TlsConfig()))
    assert tomllib.loads(text)["router"] == {"port": 1, "tenants": [{"name": "a"}]}
    messages = [{"role": "user", "content": 'say "hi"\n'}]
    nested = {"prefixes": [{"name": "p", "messages": messages}]}
    text = to_toml(completed(ProcessSpec("r", "inference", {}), nested, TlsConfig()))
    assert tomllib.loads(text)["inference"] == nested


def test_the_shape_of_a_mesh_goes_to_its_supervisor_unchanged() -> None:
    options = MeshOptions(
        (ServedModel("m", 2), ServedModel("n", threads=2, embeds=True)),
        regions=("a", "b"),
        settings=("edge.port=1",),
        tables={"edge": {"display": {"threshold": 0.5}}},
        port=0,
    )
    assert mesh.load(mesh.dump(options)) == options


def test_the_state_folder_is_its_users_alone(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    with holding(folder):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    folder.chmod(0o755)  # as an earlier version made it
    make_private(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_folder_of_others_is_not_taken_over(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o755)
    (folder / "somebody's").touch()
    with pytest.raises(UnavailableError, match="chmod 700"):
        make_private(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755


def test_the_folder_that_a_service_alone_made_becomes_its_users_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("OUTRIDER_STATE_DIR", raising=False)
    folder = default_state_dir()
    (folder / "inference" / "learnt").mkdir(parents=True)
    folder.chmod(0o755)
    make_private(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_every_process_has_a_certificate_and_nobody_else_can_read_it(tmp_path: Path) -> None:
    made = Certificates(tmp_path)
    made.issue(Role.INFERENCE, "us-east", name="us-east-0")
    for name, owner in (
        ("us-east-0", PeerIdentity(Role.INFERENCE, "us-east", "us-east-0")),
        (OPERATOR, PeerIdentity(Role.OPERATOR)),
    ):
        current = Tls.open(of_process(tmp_path, name)).current
        assert current is not None
        assert current.identity == owner
    (folder,) = tmp_path.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o600}
    keys = [file for file in folder.iterdir() if "PRIVATE KEY" in file.read_text("ascii")]
    assert len(keys) == 2, "the CA's own is not there"
    forget(tmp_path)
    assert of_process(tmp_path, OPERATOR) == TlsConfig()


@pytest.mark.parametrize("bad", ["US", "us.east", "us_east"])
def test_regions_fit_certificates(bad: str) -> None:
    with pytest.raises(ConfigError, match="--plaintext"):
        MeshOptions((ServedModel("m"),), regions=(bad,))
    plain = MeshOptions((ServedModel("m"),), regions=(bad,), plaintext=True)
    assert plain.regions == (bad,)
