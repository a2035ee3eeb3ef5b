"""A service's configuration file, followed while the service runs.

    source = ConfigSource(RouterConfig, "router", Path("outrider.toml"), flags)
    config, catalog = source.read()
    async with following(
        source, config, catalog, live_keys={"replicas", "default_model"}, apply=router.apply
    ):
        ...  # meanwhile:  await router.apply(update), an Update[RouterConfig]

The part that services use, and that stays as it is:

- `ConfigSource.read()` gives the configuration out of defaults, file, environment and flags, as at
  the start, and the definitions of models ([models.NAME] tables). `ConfigSource.read_at_once()` is
  what SIGHUP calls.
- `following(source, config, catalog, live_keys=..., apply=...)` reads the file again when its
  contents have changed. `live_keys` are the fields of the configuration that `apply` can change
  while the service runs. `source` None: nothing is followed.
- `apply` is a coroutine function. It is called with an `Update`: the configuration that runs from
  now on (live keys as the file has them now, all others as before), the catalog, and what changed.
  It is called again only after it has returned. If it raises ConfigError or another OutriderError,
  the update counts as refused, and the next one is compared with what ran before.
- `ConfigSource.verdict` says what became of the contents that were read last. The admin port shows
  it as `/config`, for who has written the file and waits for it to count.
- Any other key that has changed is logged by name, once per change, as one that needs a restart.
  So are definitions of `fixed_models`, which are models that the service cannot exchange. Without
  `apply` nothing is live.

A file that cannot be read, is half written or is refused by the configuration's own checks is
logged once, with the reason, and everything stays as it is. The file is looked at every second
(`POLL_S`). Its contents count when two looks in a row find the same file, so that a file which is
being written is not taken for a whole one; SIGHUP does not wait for that. A Kubernetes ConfigMap
needs nothing of its own: it swaps the symlink `..data`, so that the same path leads to another
file.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, NamedTuple, TypeVar

import structlog

from outrider.config import load
from outrider.errors import OutriderError
from outrider.models.catalog import SHIPPED, ModelCatalog, load_catalog

__all__ = [
    "POLL_S",
    "Changes",
    "ConfigSource",
    "Configured",
    "Update",
    "Verdict",
    "compared",
    "following",
]

C = TypeVar("C")

POLL_S: Final = 1.0
"""Time between two looks at the file."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Update(Generic[C]):
    """The configuration and models that a service is to run with from now on."""

    config: C
    """The running configuration with the live keys of the file; its other keys are as before."""
    catalog: ModelCatalog
    """The definitions of models as they are now."""
    changed_keys: frozenset[str]
    """Live keys whose values differ from what ran before."""
    changed_models: frozenset[str]
    """Names of models that were added, removed or defined differently."""


# --- what differs: pure ---


class Changes(NamedTuple):
    """Between two configurations."""

    live: frozenset[str]
    """Fields that can be applied while the service runs."""
    restart: tuple[str, ...]
    """Keys that cannot, as they are written in --set: `drain_s`, `placement.near_ms`."""


def compared(running: C, new: C, live_keys: Collection[str]) -> Changes:
    """The fields in which `new` differs from `running`; both are of one dataclass."""
    changed = _changed_fields(running, new)
    live = frozenset(name for name in changed if name in live_keys)
    restart = [
        key
        for name in changed
        if name not in live
        for key in _changed_keys(name, getattr(running, name), getattr(new, name))
    ]
    return Changes(live, tuple(restart))


def changed_models(running: ModelCatalog, new: ModelCatalog) -> frozenset[str]:
    """Names of models that were added, removed or defined differently."""
    before = {spec.name: spec for spec in running}
    after = {spec.name: spec for spec in new}
    return frozenset(
        name for name in before.keys() | after.keys() if before.get(name) != after.get(name)
    )


def _changed_fields(running: object, new: object) -> list[str]:
    fields = dataclasses.fields(running)  # type: ignore[arg-type]
    return [
        field.name for field in fields if getattr(running, field.name) != getattr(new, field.name)
    ]


def _changed_keys(name: str, running: object, new: object) -> list[str]:
    """`name` itself, or for a table the keys in it that differ."""
    if type(running) is not type(new) or not dataclasses.is_dataclass(running):
        return [name]
    return [
        key
        for field in _changed_fields(running, new)
        for key in _changed_keys(f"{name}.{field}", getattr(running, field), getattr(new, field))
    ]


# --- the file ---


class Configured(NamedTuple, Generic[C]):
    """A configuration and the models defined beside it, from one reading of the file."""

    config: C
    catalog: ModelCatalog


class Verdict(NamedTuple):
    """Result of the last reading of the file."""

    sha256: str
    """SHA-256 of the file's contents, hexadecimal; "" if they could not be read."""
    refused: str
    """Why nothing of them counts; "": they are applied, as far as they can be."""


class ConfigSource(Generic[C]):
    """Sources of a service's configuration (defaults, file, environment, flags), which can be read
    again at any time."""

    def __init__(
        self,
        cls: type[C],
        section: str,
        file: Path,
        flags: Mapping[str, object] | None = None,
        *,
        environ: Mapping[str, str] | None = None,
        with_models: bool = True,
    ) -> None:
        """`cls`, `section`, `flags` and `environ` are those of `outrider.config.load`.
        `with_models`: whether to read the [models.NAME] tables; otherwise the catalog is the
        shipped one."""
        self.file = file
        self._cls = cls
        self._section = section
        self._flags = dict(flags or {})
        self._environ = environ
        self._with_models = with_models
        self._asked = asyncio.Event()
        self.verdict: Verdict | None = None
        """Set by the task that follows the file; None until its first reading after the start."""

    def read(self) -> Configured[C]:
        """The configuration and the catalog as they are now; blocks. Raises ConfigError."""
        config = load(
            self._cls, self._section, file=self.file, environ=self._environ, flags=self._flags
        )
        if not self._with_models:
            return Configured(config, SHIPPED)
        environ = os.environ if self._environ is None else self._environ
        return Configured(config, load_catalog(self.file, environ))

    def read_at_once(self) -> None:
        """Have the task that follows the file read it now, changed or not."""
        self._asked.set()

    async def asked(self, timeout_s: float) -> bool:
        """Wait at most `timeout_s` for `read_at_once` to be called; return whether it was."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._asked.wait()
        was_asked = self._asked.is_set()
        self._asked.clear()
        return was_asked


Apply = Callable[[Update[C]], Awaitable[None]]


@asynccontextmanager
async def following(
    source: ConfigSource[C] | None,
    config: C,
    catalog: ModelCatalog,
    *,
    live_keys: Collection[str] = (),
    fixed_models: Collection[str] = (),
    apply: Apply[C] | None = None,
    poll_s: float | None = None,
) -> AsyncIterator[None]:
    """Follow the file as long as the context lasts. `config` and `catalog` are what runs now;
    `poll_s` None: `POLL_S`."""
    if source is None:
        yield
        return
    unknown = set(live_keys) - {field.name for field in dataclasses.fields(config)}  # type: ignore[arg-type]
    assert not unknown, f"live keys that are no fields: {unknown}"
    assert apply or not live_keys, "nobody applies the live keys"
    follower = _Follower(
        source, Configured(config, catalog), frozenset(live_keys), frozenset(fixed_models), apply
    )
    task = asyncio.create_task(follower.run(POLL_S if poll_s is None else poll_s))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class _Look(NamedTuple):
    """The file's metadata at one moment: equal looks mean that it was not touched in between."""

    device: int
    inode: int
    size: int
    mtime_ns: int


_MISSING: Final = _Look(0, 0, -1, 0)


def _look(path: Path) -> _Look:
    try:
        found = path.stat()
    except OSError:
        return _MISSING
    return _Look(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


def _digest(path: Path) -> bytes:
    """SHA-256 of the file's contents, empty contents if they cannot be read; `ConfigSource.read`
    reports why."""
    try:
        return hashlib.sha256(path.read_bytes()).digest()
    except OSError:
        return b""


class _Follower(Generic[C]):
    """Looks, reads, compares and calls back, one after the other."""

    def __init__(
        self,
        source: ConfigSource[C],
        running: Configured[C],
        live_keys: frozenset[str],
        fixed_models: frozenset[str],
        apply: Apply[C] | None,
    ) -> None:
        self._source = source
        self._running = running
        self._live_keys = live_keys
        self._fixed_models = fixed_models
        self._apply = apply
        self._last_read = running
        """The last valid contents of the file, including changes that wait for a restart."""
        self._look = _MISSING
        self._look_read: _Look | None = None
        """The look after which the file was read."""
        self._digest: bytes | None = None
        """SHA-256 of the contents that were read."""

    async def run(self, poll_s: float) -> None:
        """For ever."""
        # The file may have changed since the service read it, which can be minutes ago.
        was_asked = True
        while True:
            try:
                await self._poll(was_asked)
            except Exception:
                # A defect here must not end the service; the file counts as read.
                _log.exception("config_not_applied", file=str(self._source.file))
                self._judge("it failed on it: see its log")
            was_asked = await self._source.asked(poll_s)

    async def _poll(self, was_asked: bool) -> None:
        previous, self._look = self._look, await asyncio.to_thread(_look, self._source.file)
        if was_asked:
            self._digest = None
        elif self._look == self._look_read or self._look != previous:
            return
        self._look_read = self._look
        digest = await asyncio.to_thread(_digest, self._source.file)
        if digest != self._digest:
            self._digest = digest
            await self._read()

    def _judge(self, refused: str) -> None:
        self._source.verdict = Verdict((self._digest or b"").hex(), refused)

    async def _read(self) -> None:
        try:
            new = await asyncio.to_thread(self._source.read)
            await self._take(new)
            self._judge("")
        except OutriderError as error:
            self._judge(error.message)
            _log.error(
                "config_file_refused",
                file=str(self._source.file),
                error=str(error),
                effect="the settings stay as they are; correct the file",
            )

    async def _take(self, new: Configured[C]) -> None:
        running = self._running
        changes = compared(running.config, new.config, self._live_keys)
        self._log_restarts(changes.restart, new)
        self._last_read = new
        models = changed_models(running.catalog, new.catalog) - self._fixed_models
        if self._apply is None or not (changes.live or models):
            return
        live = {key: getattr(new.config, key) for key in changes.live}
        config = dataclasses.replace(running.config, **live)  # type: ignore[type-var]
        await self._apply(Update(config, new.catalog, changes.live, models))
        self._running = Configured(config, new.catalog)
        _log.info(
            "config_applied",
            file=str(self._source.file),
            keys=sorted(changes.live),
            models=sorted(models),
        )

    def _log_restarts(self, keys: tuple[str, ...], new: Configured[C]) -> None:
        """Log `keys` of the configuration and definitions of fixed models that changed since the
        last reading."""
        last = self._last_read
        since = set(compared(last.config, new.config, ()).restart)
        told = [key for key in keys if key in since]
        models = changed_models(last.catalog, new.catalog) & self._fixed_models
        told += [f"models.{name}" for name in sorted(models)]
        if told:
            _log.warning(
                "config_needs_restart",
                file=str(self._source.file),
                keys=told,
                effect="they count from the service's next start",
            )
