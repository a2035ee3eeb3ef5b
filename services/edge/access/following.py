"""Keys that change while an edge runs: the file of API keys, and an issuer's public keys."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from outrider.access.api_keys import KeyTable, scopes_of
from outrider.access.keys_file import StoredKeys, read
from outrider.config_following import ConfigSource, Configured, Update, following
from outrider.errors import ConfigError, OutriderError, UnavailableError
from outrider.extras import advice_for
from outrider.models.catalog import SHIPPED
from services.edge.access.config import JwtConfig

if TYPE_CHECKING:
    from services.edge.access.tokens import TokenVerifier

_log = structlog.get_logger()

KEYS_POLL_S: Final = 0.25
"""Time between two looks at the file of API keys; a change counts when two looks find the same."""
_FILE_REFRESH_S: Final = 1.0
_RETRY_S: Final = 5.0


class _KeysSource(ConfigSource[StoredKeys]):
    def __init__(self, file: Path) -> None:
        super().__init__(StoredKeys, "", file)

    def read(self) -> Configured[StoredKeys]:
        """The keys of the file, in the form of ConfigSource.read."""
        return Configured(read(self.file), SHIPPED)


@contextlib.asynccontextmanager
async def keys_followed(
    file: Path, set_keys: Callable[[KeyTable, int], None], poll_s: float = KEYS_POLL_S
) -> AsyncIterator[None]:
    """Call `set_keys` with the keys of the file and its revision, now and whenever it has changed.
    A file that is damaged later is logged, and the keys stay as they are. Raises ConfigError."""
    stored = await asyncio.to_thread(read, file)
    set_keys(KeyTable(stored.keys), stored.revision)

    async def apply(update: Update[StoredKeys]) -> None:
        set_keys(KeyTable(update.config.keys), update.config.revision)

    async with following(
        *(_KeysSource(file), stored, SHIPPED),
        live_keys={"keys", "revision"},
        apply=apply,
        poll_s=poll_s,
    ):
        yield


class IssuerKeys:
    """Keeps a verifier's keys up to date with the issuer's. The loop never waits: a thread fetches
    them at intervals, and soon after a token with an unknown key, but not too often."""

    def __init__(self, config: JwtConfig) -> None:
        """Raises ConfigError."""
        self._config = config
        self.verifier = _verifier(config, self.want)
        self._wanted = asyncio.Event()
        self._text = b""
        """The set as it was read last."""
        self._failed = False
        self._task: asyncio.Task[None] | None = None
        self.num_fetched = 0
        """Attempts."""

    def want(self) -> None:
        """A token names an unknown key."""
        self._wanted.set()

    def start(self) -> None:
        """Begin to fetch."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """End."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        loop, config = asyncio.get_running_loop(), self._config
        is_file = config.jwks_file is not None
        refresh_s = _FILE_REFRESH_S if is_file else config.refresh_s
        pause_s = _FILE_REFRESH_S if is_file else config.min_refetch_s
        while True:
            fetched_at = loop.time()
            is_good = await self._fetch()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(refresh_s if is_good else min(_RETRY_S, refresh_s)):
                    await self._wanted.wait()
            self._wanted.clear()
            await asyncio.sleep(max(0.0, fetched_at + pause_s - loop.time()))

    async def _fetch(self) -> bool:
        from services.edge.access.key_set import read_key_set

        self.num_fetched += 1
        try:
            text = await asyncio.to_thread(fetch, self._config)
            if text != self._text:
                keys = read_key_set(text, self._config.algorithms)
                self._text = text
                self.verifier.set_keys(keys)
                _log.info("issuer_keys", issuer=self._config.issuer, num_keys=len(keys))
        except OutriderError as error:
            if not self._failed:
                _log.error(
                    "issuer_keys_unreadable",
                    issuer=self._config.issuer,
                    error=error.message,
                    effect="tokens are verified with the keys that were read before",
                )
            self._failed = True
            return False
        self._failed = False
        return True


def _verifier(config: JwtConfig, want: Callable[[], None]) -> TokenVerifier:
    try:
        from services.edge.access.key_set import ALGORITHMS
        from services.edge.access.tokens import TokenPolicy, TokenVerifier
    except ImportError as error:
        raise ConfigError(f"jwt.issuer: {advice_for(error.name) or error}") from error
    for name in set(config.algorithms) - set(ALGORITHMS):
        raise ConfigError(
            f"jwt.algorithms: {name!r} is none of {', '.join(ALGORITHMS)}, which verify with a "
            "public key"
        )
    policy = TokenPolicy(
        issuer=config.issuer,
        audience=config.audience,
        algorithms=frozenset(config.algorithms),
        required=frozenset(config.required),
        clock_skew_s=config.clock_skew_s,
        tenant=config.tenant,
        tenant_claim=config.tenant_claim,
        user_claim=config.user_claim,
        scope_claim=config.scope_claim,
        scopes=scopes_of(config.scopes, "jwt.scopes") if config.scopes else frozenset(),
    )
    return TokenVerifier(policy, want)


def fetch(config: JwtConfig) -> bytes:
    """The issuer's JWK set; blocks, but no longer than for its timeout. Raises UnavailableError."""
    from services.edge.access.bounded_http import read_url
    from services.edge.access.key_set import MAX_SET_BYTES

    where = config.jwks_file or config.jwks_url
    try:
        if config.jwks_file is not None:
            with config.jwks_file.open("rb") as file:
                return file.read(MAX_SET_BYTES + 1)
        return read_url(
            config.jwks_url,
            ca=config.jwks_ca,
            timeout_s=config.timeout_s,
            max_bytes=MAX_SET_BYTES + 1,
        )
    except TimeoutError as error:
        raise UnavailableError(f"{where} took too long") from error
    except (OSError, HTTPException, ValueError) as error:
        raise UnavailableError(f"cannot read {where}: {error}") from error
