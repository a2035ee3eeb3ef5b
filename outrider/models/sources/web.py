"""Fetches a URL: resumes (HTTP range requests, RFC 9110 section 14), retries, and follows redirects
without sending the token to another host or falling back to plain http."""

from __future__ import annotations

import http.client
import re
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from http.client import HTTPMessage
from pathlib import Path
from typing import IO, NoReturn, TypeVar
from urllib.parse import SplitResult, urlsplit

from outrider import host_names
from outrider.backoff import Backoff
from outrider.errors import SourceError
from outrider.models.disk.fetch import COPY_BYTES, ByteSink

TIMEOUT_S = 30.0
MAX_ATTEMPTS = 5
_RETRIED = {408, 425, 429, 500, 502, 503, 504}
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_Result = TypeVar("_Result")


class _TransientError(Exception):
    """Worth another attempt."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What a server says of a file before it sends it."""

    validator: str
    """Name of the file's version, as in FetchPosition; "": none."""
    num_bytes: int | None
    """Its size; None: not said."""
    sha256: str | None
    """Its digest; None: not said."""


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
        """Address to fetch."""
        return self._url

    def fetch(self, partial: ByteSink, scratch: Path) -> str | None:
        """Download, resuming where an earlier attempt or process stopped."""
        return self._tried(lambda: self._attempt(partial))

    def offer(self) -> Offer:
        """What the server says of the file now; none of its bytes are read. Raises SourceError."""
        return self._tried(self._ask)

    def _tried(self, attempt_once: Callable[[], _Result]) -> _Result:
        problem = ""
        backoff = Backoff(self._backoff_s)
        for attempt in range(MAX_ATTEMPTS):
            if attempt:
                time.sleep(backoff.next_s())
            try:
                return attempt_once()
            except _TransientError as error:
                problem = str(error)
        raise SourceError(
            f"{self._text}: gave up after {MAX_ATTEMPTS} attempts ({problem}); what arrived is "
            "kept where the server allows resuming: pull again later"
        )

    def _attempt(self, partial: ByteSink) -> str | None:
        kept, redirects = partial.position, RedirectPolicy()
        headers = dict[str, str]()
        if kept.num_bytes and kept.validator:
            headers = {"Range": f"bytes={kept.num_bytes}-", "If-Range": kept.validator}
        with self._faults(partial), self._opened(headers, redirects) as response:
            self._receive(response, partial)
        return redirects.claimed_sha256

    def _ask(self) -> Offer:
        redirects = RedirectPolicy()
        with self._faults(None), self._opened({}, redirects) as response:
            headers = response.headers
        return Offer(_validator(headers), _announced(headers), redirects.claimed_sha256)

    def _opened(
        self, headers: Mapping[str, str], redirects: RedirectPolicy
    ) -> http.client.HTTPResponse:
        request = urllib.request.Request(self._url)  # noqa: S310 - parse_source admits https only
        request.add_header("User-Agent", "outrider")
        request.add_header("Accept-Encoding", "identity")
        for name, value in headers.items():
            request.add_header(name, value)
        if self._token:
            request.add_unredirected_header("Authorization", f"Bearer {self._token}")
        opened: http.client.HTTPResponse
        opened = _opener(self._url, redirects).open(request, timeout=TIMEOUT_S)
        return opened

    def _receive(self, response: http.client.HTTPResponse, partial: ByteSink) -> None:
        kept = partial.position
        total_bytes = _announced(response.headers)
        offset = 0
        if response.status == 206:
            offset, total_bytes = self._resumed(response.headers, kept.num_bytes)
            if _validator(response.headers) not in ("", kept.validator):
                # A server or a cache that ignores If-Range: the rest is another file's.
                partial.discard()
                raise _TransientError("the file changed since its beginning was fetched")
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
    def _faults(self, partial: ByteSink | None) -> Iterator[None]:
        """Turn the network's exceptions into _TransientError, which is worth another attempt, or
        SourceError."""
        try:
            yield
        except urllib.error.HTTPError as error:
            error.close()
            if (
                error.code == 416 and partial is not None
            ):  # the bytes kept are not a part of what is there now
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


def open_url(request: urllib.request.Request, timeout_s: float) -> http.client.HTTPResponse:
    """The answer, after redirects to https. Raises urllib.error.URLError, SourceError, OSError."""
    opener = _opener(request.full_url, RedirectPolicy())
    answer: http.client.HTTPResponse = opener.open(request, timeout=timeout_s)
    return answer


def _opener(url: str, redirects: RedirectPolicy) -> urllib.request.OpenerDirector:
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


_SHA256 = re.compile(r'"?([0-9a-f]{64})"?')


class RedirectPolicy(urllib.request.HTTPRedirectHandler):
    """The redirect policy of one request.

    A hub answers a file's address with a redirect to its storage and puts the file's sha256 into
    `X-Linked-Etag` there; that is kept as the claim the bytes must meet.
    """

    def __init__(self) -> None:
        self.claimed_sha256: str | None = None

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        """The next request. SourceError if it would fall back to plain http."""
        target, origin = urlsplit(newurl), urlsplit(req.full_url)
        if target.scheme != "https" and not (is_loopback(target) and is_loopback(origin)):
            raise SourceError(
                f"{origin.hostname} redirects to {target.scheme}://{target.hostname}, which is "
                "not https; refused"
            )
        claim = _SHA256.fullmatch(headers.get("X-Linked-Etag", ""))
        if claim is not None:
            self.claimed_sha256 = claim[1]
        following = super().redirect_request(req, fp, code, msg, headers, newurl)
        token = req.unredirected_hdrs.get("Authorization")
        if following is not None and token and _same_origin(origin, target):
            following.add_unredirected_header("Authorization", token)
        return following


def is_loopback(url: SplitResult) -> bool:
    """Whether a URL's host is this machine, by its literal address or the name localhost."""
    return host_names.is_loopback(url.hostname or "")


def _same_origin(one: SplitResult, other: SplitResult) -> bool:
    return (one.scheme, one.netloc) == (other.scheme, other.netloc)
