"""A configuration file followed while a service runs: real files, replaced in the ways in which
people, editors and Kubernetes replace them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from outrider import config_following
from outrider.config_following import ConfigSource, Update, compared, following
from outrider.errors import ConfigError
from outrider.telemetry.logs import configure_logging
from outrider.testing import eventually

ENVIRON = {"OUTRIDER_MODELS": "/dev/null"}
POLL_S = 0.01
TIMEOUT_S = 10.0
WEIGHTS = "file:/nowhere/model.gguf"


@dataclass(frozen=True, slots=True)
class Limits:
    near_ms: float = 1.0
    far_ms: float = 2.0


@dataclass(frozen=True, slots=True)
class Config:
    models: tuple[str, ...] = ("a",)
    port: int = 0
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if not self.models:
            raise ConfigError("models is empty: name one.")


class Service:
    """Something that follows a file, and what it was told."""

    def __init__(self) -> None:
        self.updates: asyncio.Queue[Update[Config]] = asyncio.Queue()
        self.refusals = 0
        """Updates that are still to be refused."""
        self.refused = asyncio.Event()

    async def apply(self, update: Update[Config]) -> None:
        if self.refusals:
            self.refusals -= 1
            self.refused.set()
            raise ConfigError("not now")
        self.updates.put_nowait(update)

    async def next(self) -> Update[Config]:
        async with asyncio.timeout(TIMEOUT_S):
            return await self.updates.get()


@asynccontextmanager
async def followed(
    file: Path,
    *,
    environ: Mapping[str, str] = ENVIRON,
    flags: Mapping[str, object] | None = None,
    fixed_models: Collection[str] = (),
    poll_s: float = POLL_S,
) -> AsyncIterator[tuple[Service, ConfigSource[Config]]]:
    service = Service()
    source = ConfigSource(Config, "service", file, flags, environ=environ)
    async with following(
        source,
        *source.read(),
        live_keys={"models"},
        fixed_models=fixed_models,
        apply=service.apply,
        poll_s=poll_s,
    ):
        yield service, source


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "outrider.toml"
    write(path, '[service]\nmodels = ["a"]\n')
    return path


@pytest.fixture
def logs() -> Iterator[list[dict[str, object]]]:
    configure_logging("test", "info")
    with capture_logs() as entries:
        yield entries  # type: ignore[misc]


def write(path: Path, text: str) -> None:
    path.write_text(text)


def remove(path: Path) -> None:
    path.unlink()


async def logged(logs: list[dict[str, object]], event: str) -> dict[str, object]:
    """The newest line of an event, once there is one."""
    await eventually(lambda: any(entry["event"] == event for entry in logs))
    return [entry for entry in logs if entry["event"] == event][-1]


def test_what_can_be_applied_is_told_from_what_needs_a_restart() -> None:
    new = Config(models=("b",), port=1, limits=Limits(near_ms=5.0))

    assert compared(Config(), new, {"models"}) == (
        frozenset({"models"}),
        ("port", "limits.near_ms"),
    )
    assert compared(new, new, {"models"}) == (frozenset(), ())


async def test_a_changed_file_is_applied(file: Path) -> None:
    async with followed(file) as (service, _):
        write(file, '[service]\nmodels = ["a", "b"]\nport = 7\n')

        update = await service.next()

    assert update.config == Config(models=("a", "b"))  # the port waits for a restart
    assert update.changed_keys == {"models"}
    assert update.changed_models == frozenset()


async def test_a_file_that_changed_before_it_was_followed_is_applied(file: Path) -> None:
    source = ConfigSource(Config, "service", file, environ=ENVIRON)
    old, catalog = source.read()
    write(file, '[service]\nmodels = ["b"]\n')
    service = Service()

    async with following(source, old, catalog, live_keys={"models"}, apply=service.apply):
        assert (await service.next()).config.models == ("b",)


async def test_a_config_map_is_followed(tmp_path: Path) -> None:
    """A kubelet writes a new folder and swaps the symlink ..data, through which the file leads."""

    def publish(version: str, text: str) -> None:
        folder = tmp_path / version
        folder.mkdir()
        (folder / "outrider.toml").write_text(text)
        (tmp_path / "..data_tmp").symlink_to(version)
        (tmp_path / "..data_tmp").replace(tmp_path / "..data")

    publish("..2026_01", '[service]\nmodels = ["a"]\n')
    file = tmp_path / "outrider.toml"
    file.symlink_to("..data/outrider.toml")

    async with followed(file) as (service, _):
        publish("..2026_02", '[service]\nmodels = ["b"]\n')
        first = await service.next()
        publish("..2026_03", '[service]\nmodels = ["c"]\n')
        second = await service.next()

    assert [first.config.models, second.config.models] == [("b",), ("c",)]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('[service]\nmodels = ["a', "not valid TOML"),
        ("", "no table [service]"),
        ("[service]\nmodel = 3\n", "did you mean models?"),
        ("[service]\nmodels = []\n", "models is empty"),
        ("[service]\n[models.x]\nsource = 3\n", "source"),
    ],
)
async def test_what_cannot_be_used_is_logged_and_changes_nothing(
    file: Path, logs: list[dict[str, object]], text: str, reason: str
) -> None:
    async with followed(file) as (service, _):
        write(file, text)
        refused = await logged(logs, "config_file_refused")
        write(file, '[service]\nmodels = ["b"]\n')

        assert (await service.next()).config.models == ("b",)

    assert reason in str(refused["error"])
    assert [entry["event"] for entry in logs].count("config_file_refused") == 1


async def test_a_file_that_is_gone_is_logged_and_taken_up_when_it_is_back(
    file: Path, logs: list[dict[str, object]]
) -> None:
    async with followed(file) as (service, _):
        remove(file)
        assert "No such file" in str((await logged(logs, "config_file_refused"))["error"])
        write(file, '[service]\nmodels = ["b"]\n')

        assert (await service.next()).config.models == ("b",)


async def test_a_file_that_is_being_written_is_waited_for(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of a file may be valid and mean something else: it counts once it stays as it is."""
    texts = iter(f'[service]\nmodels = ["{name * 9}"]\n' for name in "bcdefg")
    look = config_following._look

    def look_and_write(path: Path) -> object:
        """Somebody writes on after each look."""
        seen = look(path)
        if (text := next(texts, None)) is not None:
            write(path, text)
        return seen

    async with followed(file) as (service, _):
        write(file, '[service]\nmodels = ["a", "b"]\n')
        await service.next()
        monkeypatch.setattr(config_following, "_look", look_and_write)

        assert (await service.next()).config.models == ("g" * 9,)


async def test_environment_and_flags_still_win(file: Path) -> None:
    environ = ENVIRON | {"OUTRIDER_SERVICE_PORT": "5"}
    async with followed(file, environ=environ, flags={"limits.near_ms": "9"}) as (service, _):
        write(file, '[service]\nmodels = ["b"]\nport = 6\nlimits = {near_ms = 7.0}\n')

        config = (await service.next()).config

    assert (config.port, config.limits.near_ms) == (5, 9.0)


async def test_a_live_key_that_a_flag_gives_stays_as_it_is(
    file: Path, logs: list[dict[str, object]]
) -> None:
    async with followed(file, flags={"models": "a"}) as (service, _):
        write(file, '[service]\nmodels = ["b"]\nport = 6\n')
        await logged(logs, "config_needs_restart")

    assert service.updates.empty()


async def test_keys_that_need_a_restart_are_logged_once_per_change(
    file: Path, logs: list[dict[str, object]]
) -> None:
    async with followed(file) as (service, _):
        write(file, '[service]\nmodels = ["b"]\nport = 6\n')
        await service.next()
        write(file, '[service]\nmodels = ["c"]\nport = 6\n')
        await service.next()
        write(file, '[service]\nmodels = ["d"]\nport = 6\nlimits = {far_ms = 9.0}\n')
        await service.next()

    told = [entry["keys"] for entry in logs if entry["event"] == "config_needs_restart"]
    assert told == [["port"], ["limits.far_ms"]]


async def test_definitions_of_models_are_followed(
    file: Path, logs: list[dict[str, object]]
) -> None:
    text = '[service]\nmodels = ["a"]\n'
    async with followed(file, fixed_models={"mine"}) as (service, _):
        write(file, text + f'[models.yours]\nsource = "{WEIGHTS}"\n')
        added = await service.next()
        write(file, text + f'[models.mine]\nsource = "{WEIGHTS}"\n')
        removed = await service.next()

    assert added.changed_models == {"yours"} and not added.changed_keys
    assert added.catalog.lookup("yours").source == WEIGHTS
    assert removed.changed_models == {"yours"} and "yours" not in removed.catalog.names
    restarts = [entry["keys"] for entry in logs if entry["event"] == "config_needs_restart"]
    assert restarts == [["models.mine"]]


async def test_what_a_service_refuses_is_compared_with_what_it_ran_before(file: Path) -> None:
    async with followed(file) as (service, source):
        service.refusals = 1
        write(file, '[service]\nmodels = ["b"]\n')
        async with asyncio.timeout(TIMEOUT_S):
            await service.refused.wait()
        source.read_at_once()

        assert (await service.next()).changed_keys == {"models"}


async def test_what_became_of_the_contents_is_told_to_who_wrote_them(file: Path) -> None:
    def verdict_of_the_file() -> str | None:
        """Why it is refused; None: it was not read yet."""
        told = source.verdict
        digest = sha256(file.read_bytes()).hexdigest()
        return told.refused if told is not None and told.sha256 == digest else None

    async with followed(file) as (service, source):
        write(file, '[service]\nmodels = ["b"]\n')
        await eventually(lambda: verdict_of_the_file() == "")
        write(file, "[service]\nmodels = []\n")
        await eventually(lambda: verdict_of_the_file() == "models is empty: name one.")
        service.refusals = 1
        write(file, '[service]\nmodels = ["c"]\n')
        await eventually(lambda: verdict_of_the_file() == "not now")
        remove(file)
        await eventually(lambda: source.verdict is not None and not source.verdict.sha256)
        assert source.verdict is not None and "No such file" in source.verdict.refused


async def test_whoever_asks_has_it_read_at_once(file: Path) -> None:
    """As SIGHUP does (tests/cli/test_serve.py, with a process of its own)."""
    async with followed(file, poll_s=3600.0) as (service, source):
        write(file, '[service]\nmodels = ["b"]\n')
        source.read_at_once()
        assert (await service.next()).config.models == ("b",)


async def test_without_a_file_nothing_is_followed(file: Path) -> None:
    source = ConfigSource(Config, "service", file, environ=ENVIRON)
    async with following(None, *source.read()):
        pass
