"""Precedence, types and the messages of every failure."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from outrider.config import check_address, from_text, load
from outrider.errors import ConfigError


@dataclass(frozen=True)
class Region:
    name: str
    rtt_ms: float = 0.0


@dataclass(frozen=True)
class Sample:
    host: str = "127.0.0.1"
    port: int = 0
    share: float = 0.5
    verbose: bool = False
    cert: Path | None = None
    peers: tuple[str, ...] = ()
    regions: tuple[Region, ...] = ()
    limit: int | None = None

    def __post_init__(self) -> None:
        if self.port < 0:
            raise ConfigError(f"port must be at least 0, not {self.port}")


@dataclass(frozen=True)
class Limits:
    max_open: int = 4
    share: float = 0.5

    def __post_init__(self) -> None:
        if self.max_open <= 0:
            raise ConfigError(f"limits.max_open is {self.max_open}: set it above 0.")


@dataclass(frozen=True)
class Nested:
    max_open: int = 1
    limits: Limits = field(default_factory=Limits)
    region: Region | None = None


@dataclass(frozen=True)
class Required:
    router: str


def _file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "mesh.toml"
    path.write_text(text)
    return path


def test_precedence_is_defaults_file_environment_flags(tmp_path: Path) -> None:
    file = _file(tmp_path, '[sample]\nhost = "f"\nport = 1\nshare = 1\nverbose = true\n')
    environ = {"OUTRIDER_SAMPLE_PORT": "2", "OUTRIDER_SAMPLE_SHARE": "0.25", "OTHER": "x"}
    flags = {"share": 0.75, "port": None}
    loaded = load(Sample, "sample", file=file, environ=environ, flags=flags)
    assert loaded == Sample(host="f", port=2, share=0.75, verbose=True)


def test_file_gives_lists_paths_and_tables(tmp_path: Path) -> None:
    text = """
    [sample]
    cert = "dev.pem"
    peers = ["a", "b"]
    [[sample.regions]]
    name = "us"
    rtt_ms = 3
    [[sample.regions]]
    name = "eu"
    [other]
    anything = 1
    """
    loaded = load(Sample, "sample", file=_file(tmp_path, text), environ={})
    assert loaded.cert == Path("dev.pem")
    assert loaded.peers == ("a", "b")
    assert loaded.regions == (Region("us", 3.0), Region("eu"))
    assert isinstance(loaded.regions[0].rtt_ms, float)


@pytest.mark.parametrize(
    ("name", "text", "field", "expected"),
    [
        ("PEERS", "a, b,", "peers", ("a", "b")),
        ("VERBOSE", "ON", "verbose", True),
        ("VERBOSE", "0", "verbose", False),
        ("CERT", "/x/y", "cert", Path("/x/y")),
        ("CERT", "", "cert", None),
        ("LIMIT", "7", "limit", 7),
        ("LIMIT", "", "limit", None),
        ("HOST", "", "host", ""),
    ],
)
def test_environment_text(name: str, text: str, field: str, expected: object) -> None:
    loaded = load(Sample, "sample", environ={f"OUTRIDER_SAMPLE_{name}": text})
    assert getattr(loaded, field) == expected


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("PORT", "many", "OUTRIDER_SAMPLE_PORT: expected an integer, not 'many'"),
        ("SHARE", "half", "expected a number"),
        ("SHARE", "nan", "OUTRIDER_SAMPLE_SHARE: expected a number, not nan"),
        ("VERBOSE", "maybe", "expected true or false"),
        ("REGIONS", "us", "can only be given in the file"),
        ("HOTS", "x", "did you mean host?"),
        ("ZZZZZZ", "x", "known keys: host, port"),
        ("PORT", "-1", "port must be at least 0"),
    ],
)
def test_bad_environment(name: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(Sample, "sample", environ={f"OUTRIDER_SAMPLE_{name}": text})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[sample]\nprot = 1", "[sample] prot: unknown key, did you mean port?"),
        ("[sample]\nport = '1'", "port: expected int, not '1'"),
        ("[sample]\nport = true", "port: expected int, not True"),
        ("[sample]\nshare = true", "share: expected float"),
        ("[sample]\npeers = 'a'", "peers: expected a list"),
        ("[sample]\npeers = [1]", "peers[0]: expected str"),
        ("[sample]\nregions = [1]", "regions[0]: expected a table"),
        ("[sample]\nregions = [{nam = 'x'}]", "did you mean name?"),
        ("[sample]\nregions = [{rtt_ms = 1}]", "regions[0]: name must be given"),
        ("[sample]\nshare = nan", "share: expected a number, not nan"),
        ("[sample]\nshare = 1" + "0" * 400, "share: expected a number that is not as large"),
        ("sample = 3", "must be a table"),
        ("port = 3", "has no table [sample], only port; write [sample] first"),
        ("[smaple]\nport = 3", "has no table [sample], only smaple"),
        ("", "has no table [sample], only nothing"),
        ("= 3", "is not valid TOML"),
    ],
)
def test_bad_file(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(Sample, "sample", file=_file(tmp_path, text), environ={})
    assert message in str(caught.value)


@pytest.mark.parametrize("address", ["h:1", "10.0.0.1:65535", "[::1]:80", "dns:///h:7001"])
def test_addresses(address: str) -> None:
    check_address(address, "router")


@pytest.mark.parametrize("address", ["", "h", "h:", ":1", "h:0", "h:65536", "h:http", "h:-1"])
def test_addresses_that_are_none(address: str) -> None:
    with pytest.raises(ConfigError, match="router must be host:port"):
        check_address(address, "router")


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*absent\.toml"):
        load(Sample, "sample", file=tmp_path / "absent.toml", environ={})


def test_required_fields_must_be_given() -> None:
    with pytest.raises(ConfigError, match="router must be given"):
        load(Required, "edge", environ={})
    assert load(Required, "edge", environ={}, flags={"router": "r:1"}) == Required("r:1")


def test_tables_are_set_key_by_key_in_the_environment_and_by_flags(tmp_path: Path) -> None:
    file = _file(tmp_path, "[nested]\nmax_open = 2\n[nested.limits]\nshare = 0.25\n")
    environ = {"OUTRIDER_NESTED_LIMITS_MAX_OPEN": "8", "OUTRIDER_NESTED_REGION_NAME": "us"}
    loaded = load(Nested, "nested", file=file, environ=environ, flags={"limits.share": "0.75"})
    assert loaded == Nested(2, Limits(8, 0.75), Region("us"))
    loaded = load(Nested, "nested", environ={}, flags={"limits.max_open": 3})
    assert loaded == Nested(limits=Limits(3))
    assert from_text(Nested, "limits.max_open", "9", "here") == 9


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("LIMITS_MAX_OPEN", "0", "limits.max_open is 0"),
        ("LIMITS_MAX_OPEM", "1", "did you mean max_open?"),
        ("SHARE", "1", "did you mean limits.share?"),
        ("LIMITS_MAX_OPEN", "x", "OUTRIDER_NESTED_LIMITS_MAX_OPEN: expected an integer"),
        ("REGION_RTT_MS", "1", "name must be given"),
    ],
)
def test_bad_keys_of_tables_in_the_environment(name: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(Nested, "nested", environ={f"OUTRIDER_NESTED_{name}": text})
    assert message in str(caught.value)


def test_flags_are_checked_and_may_carry_tuples() -> None:
    flags = {"peers": ["a"], "regions": (Region("us"),)}
    assert load(Sample, "sample", environ={}, flags=flags).regions == (Region("us"),)
    with pytest.raises(ConfigError, match="flag port: expected an integer"):
        load(Sample, "sample", environ={}, flags={"port": "x"})


def test_the_process_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_SAMPLE_PORT", "9")
    assert load(Sample, "sample").port == 9
