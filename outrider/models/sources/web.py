"""A URL, with resumption (HTTP range requests, RFC 9110 section 14) and retries."""

from __future__ import annotations

import http.client
import re
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import Message
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

from outrider.errors import SourceError
from outrider.models.disk.partial import Partial
from outrider.models.sources.base import COPY_BYTES
from outrider.models.sources.redirects import Redirects, is_loopback

TIMEOUT_S = 30.0
MAX_ATTEMPTS = 5
_RETRIED = {408, 425, 429, 500, 502, 503, 504}
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")


class _TransientError(Exception):
    """Worth another attempt."""


class WebSource:
    """`https://...`, or a hub file at its resolve URL."""

    def __init__(self, text: str, url: str, *, token: str = "", backoff_s: float = 0.5) -> None:
        self._text = text
        self._url = url
        self._token = token
        self._backoff_s = backoff_s

    @property
    def text(self) -> str:
        """The canonical text; the token is no part of it."""
        return self._text

    @property
    def url(self) -> str:
        """What is fetched."""
        return self._url

    def fetch(self, partial: Partial, scratch: Path) -> str | None:
        """Download, going on where an earlier attempt or process stopped."""
        problem = ""
        for attempt in range(MAX_ATTEMPTS):
            if attempt:
                time.sleep(self._backoff_s * 2 ** (attempt - 1))
            try:
                return self._attempt(partial)
            except _TransientError as error:
                problem = str(error)
        raise SourceError(
            f"{self._text}: gave up after {MAX_ATTEMPTS} attempts ({problem}); what arrived is "
            "kept where the server allows resuming: pull again later"
        )

    def _attempt(self, partial: Partial) -> str | None:
        request = urllib.request.Request(self._url)  # noqa: S310 - parse_source admits https only
        request.add_header("User-Agent", "outrider")
        request.add_header("Accept-Encoding", "identity")
        if self._token:
            request.add_unredirected_header("Authorization", f"Bearer {self._token}")
        kept = partial.position
        if kept.num_bytes and kept.validator:
            request.add_header("Range", f"bytes={kept.num_bytes}-")
            request.add_header("If-Range", kept.validator)
        redirects = Redirects()
        with (
            self._faults(partial),
            _opener(self._url, redirects).open(request, timeout=TIMEOUT_S) as response,
        ):
            self._receive(response, partial)
        return redirects.claimed_sha256

    def _receive(self, response: http.client.HTTPResponse, partial: Partial) -> None:
        kept = partial.position
        total_bytes = _announced(response.headers)
        offset = 0
        if response.status == 206:
            offset, total_bytes = self._resumed(response.headers, kept.num_bytes)
        elif response.status != 200:
            raise SourceError(f"{self._text}: the server answered {response.status}")
        partial.begin(_validator(response.headers), offset=offset, total_bytes=total_bytes)
        while chunk := response.read(COPY_BYTES):
            partial.write(chunk)
        done_bytes = partial.position.num_bytes
        if total_bytes is not None and done_bytes < total_bytes:
            raise _TransientError(f"the connection ended after {done_bytes} of {total_bytes} bytes")

    def _resumed(self, headers: Message, asked: int) -> tuple[int, int]:
        match = _CONTENT_RANGE.fullmatch(headers.get("Content-Range", ""))
        if match is None or int(match[1]) != asked:
            raise SourceError(
                f"{self._text}: the server answered range {headers.get('Content-Range')!r} "
                f"where bytes from {asked} on were asked for"
            )
        return asked, int(match[3])

    @contextmanager
    def _faults(self, partial: Partial) -> Iterator[None]:
        """What the network raises, as what is worth another attempt and what is not."""
        try:
            yield
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 416:  # the bytes kept are not a part of what is there now
                partial.discard()
                raise _TransientError("the server has no bytes behind those kept") from error
            self._refused(error)
        except urllib.error.URLError as error:
            if isinstance(error.reason, ssl.SSLCertVerificationError):
                raise SourceError(f"{self._text}: bad certificate: {error.reason}") from error
            raise _TransientError(f"{error.reason}") from error
        except (http.client.HTTPException, TimeoutError, ConnectionError, ssl.SSLError) as error:
            raise _TransientError(f"{type(error).__name__}: {error}") from error

    def _refused(self, error: urllib.error.HTTPError) -> NoReturn:
        if error.code in _RETRIED:
            raise _TransientError(f"the server answered {error.code}") from error
        hint = "check the address"
        if error.code in (401, 403):
            hint = (
                "the file is gated or private: set HF_TOKEN"
                if not self._token
                else ("the token has no right to it")
            )
        raise SourceError(f"{self._text}: the server answered {error.code}; {hint}") from error


def _opener(url: str, redirects: Redirects) -> urllib.request.OpenerDirector:
    handlers: list[urllib.request.BaseHandler] = [redirects]
    if is_loopback(urlsplit(url)):
        handlers.append(urllib.request.ProxyHandler({}))  # this machine is never behind a proxy
    return urllib.request.build_opener(*handlers)


def _announced(headers: Message) -> int | None:
    length = headers.get("Content-Length", "")
    return int(length) if length.isdigit() else None


def _validator(headers: Message) -> str:
    """A strong ETag, else the date (RFC 9110 section 13.1.5 allows both in If-Range); "" = none."""
    etag: str = headers.get("ETag", "")
    if etag.startswith('"'):
        return etag
    return headers.get("Last-Modified", "") if not etag else ""
