"""`s3://BUCKET/PREFIX`: a bucket of S3 or of a compatible server, through obstore (Apache Arrow's
object_store), which signs requests and finds credentials.

Endpoint, region and credentials are those of AWS's own variables: AWS_ENDPOINT_URL, AWS_REGION,
AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a web identity, a container's or a machine's role.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from outrider.errors import ConfigError
from outrider.extras import advice_for
from outrider.mirrors.mirror import (
    READ_BYTES,
    TIMEOUT_S,
    BrokeOffError,
    LacksError,
    RefusedError,
)
from outrider.models.sources.web import is_loopback

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig, S3Config, S3Store


class S3Mirror:
    """Objects below one prefix of a bucket."""

    def __init__(self, url: str, environ: Mapping[str, str] = os.environ) -> None:
        """Raises ConfigError without the package, and for a bucket that cannot be one."""
        self._url = url.rstrip("/")
        self._store = _store(self._url, environ)

    @property
    def text(self) -> str:
        return self._url

    @contextmanager
    def open(self, name: str, offset: int = 0) -> Iterator[tuple[int, Iterator[bytes]]]:
        import obstore

        with _faults():
            if offset:
                found = obstore.get(self._store, name, options={"range": {"offset": offset}})
            else:
                found = obstore.get(self._store, name)
            yield found.range[0], map(bytes, found.stream(min_chunk_size=READ_BYTES))

    def num_bytes(self, name: str) -> int | None:
        import obstore

        try:
            with _faults():
                return obstore.head(self._store, name)["size"]
        except LacksError:
            return None

    def put(self, name: str, data: bytes) -> None:
        import obstore

        with _faults():
            obstore.put(self._store, name, data, use_multipart=False)


def _store(url: str, environ: Mapping[str, str]) -> S3Store:
    try:
        from obstore.store import S3Store
    except ImportError as error:
        raise ConfigError(f"{url}: {advice_for('obstore')}") from error
    seconds = timedelta(seconds=TIMEOUT_S)
    # Of a whole request there is no limit: under a cap it takes as long as it takes.
    options: ClientConfig = {
        "connect_timeout": seconds,
        "read_timeout": seconds,
        "timeout": "1 day",
    }
    endpoint = environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL") or ""
    if endpoint.startswith("http://") and is_loopback(urlsplit(endpoint)):
        options["allow_http"] = True
    # Attempts are counted by whoever fetches, who has other places to ask meanwhile.
    retry: RetryConfig = {"max_retries": 1, "retry_timeout": timedelta(seconds=5)}
    parts = urlsplit(url)
    config: S3Config = {"endpoint": endpoint} if endpoint else {}
    for name in ("access_key_id", "secret_access_key", "region"):
        if value := environ.get(f"AWS_{name.upper()}"):
            config[name] = value
    try:
        return S3Store(
            parts.netloc,
            prefix=parts.path.strip("/") or None,
            client_options=options,
            retry_config=retry,
            config=config,
        )
    except Exception as error:  # the library's errors have no common class for wrong settings
        raise ConfigError(f"{url}: {error}"[:500]) from error


@contextmanager
def _faults() -> Iterator[None]:
    from obstore import exceptions

    try:
        yield
    except (exceptions.NotFoundError, FileNotFoundError) as error:
        raise LacksError from error
    except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
        raise RefusedError(
            "the credentials may not do that; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        ) from error
    except (exceptions.BaseError, OSError) as error:
        # The library's words have the request's address in them, and no credentials.
        raise BrokeOffError(_short(str(error))) from error


def _short(text: str) -> str:
    return " ".join(text.split())[:400]
