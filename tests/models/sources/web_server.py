"""A real HTTP server on loopback that serves byte ranges and misbehaves on request."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Site:
    """What the server serves, what it does wrong, and what it was asked."""

    body: bytes = b""
    etag: str | None = '"v1"'
    last_modified: str | None = None
    ignores_ranges: bool = False
    omits_length: bool = False
    announces_bytes: int | None = None
    content_range: str | None = None
    statuses: list[int] = field(default_factory=list)
    """Answered first, one per request."""
    cuts: list[int] = field(default_factory=list)
    """After how many body bytes the connection breaks, one per request."""
    redirect: str | None = None
    redirect_headers: dict[str, str] = field(default_factory=dict)
    ignores_conditions: bool = False
    """Ranges are answered whatever If-Range says."""
    before_body: Callable[[], None] = lambda: None
    at_cut: Callable[[], None] = lambda: None
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    """Paths and headers (lower-case names), in order."""
    url: str = ""

    @property
    def ranges(self) -> list[str | None]:
        """The Range header of each request."""
        return [headers.get("range") for _, headers in self.requests]


@contextmanager
def serve(site: Site) -> Iterator[Site]:
    """Serve `site` while the block runs; its `url` is set."""

    class Handler(_Handler):
        pass

    Handler.site = site
    with listening(Handler) as site.url:
        yield site


@contextmanager
def listening(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Answer requests on loopback while the block runs; the address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    site: Site

    def do_GET(self) -> None:
        site = self.site
        site.requests.append((self.path, {k.lower(): v for k, v in self.headers.items()}))
        if site.statuses:
            self._finish(site.statuses.pop(0), {"Content-Length": "0"})
        elif site.redirect is not None:
            self._finish(302, {"Location": site.redirect, **site.redirect_headers})
        else:
            self._send_body()

    def _send_body(self) -> None:
        site = self.site
        start = self._start()
        headers = {}
        if start:
            span = f"bytes {start}-{len(site.body) - 1}/{len(site.body)}"
            headers["Content-Range"] = site.content_range or span
        if start is not None and start >= len(site.body) > 0:
            self._finish(416, {"Content-Length": "0"})
            return
        body = site.body[start or 0 :]
        if not site.omits_length:
            headers["Content-Length"] = str(site.announces_bytes or len(body))
        self._finish(206 if start else 200, headers)
        site.before_body()
        cut = site.cuts.pop(0) if site.cuts else None
        self.wfile.write(body[:cut])
        if cut is not None:
            self.wfile.flush()
            site.at_cut()
        self.close_connection = True

    def _start(self) -> int | None:
        match = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        condition = self.headers.get("If-Range")
        current = (self.site.etag, self.site.last_modified)
        if match is None or self.site.ignores_ranges:
            return None
        if condition not in current and not self.site.ignores_conditions:
            return None
        return int(match[1])

    def _finish(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        if self.site.etag is not None:
            self.send_header("ETag", self.site.etag)
        if self.site.last_modified is not None:
            self.send_header("Last-Modified", self.site.last_modified)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""
