"""Following redirects without leaking the token or leaving https."""

from __future__ import annotations

import re
import urllib.request
from http.client import HTTPMessage
from ipaddress import ip_address
from typing import IO
from urllib.parse import SplitResult, urlsplit

from outrider.errors import SourceError

_SHA256 = re.compile(r'"?([0-9a-f]{64})"?')


class Redirects(urllib.request.HTTPRedirectHandler):
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
    host = url.hostname or ""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _same_origin(one: SplitResult, other: SplitResult) -> bool:
    return (one.scheme, one.netloc) == (other.scheme, other.netloc)
