"""HTTP requests whose answer may come, with the connection's end, before the body is sent: a server
that refuses a body for its size reads no further. urllib itself reports "broken pipe" instead."""

from __future__ import annotations

import http.client
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any


@cache
def opener() -> urllib.request.OpenerDirector:
    """Like urllib.request.urlopen, but also reads such early answers."""
    return urllib.request.build_opener(_Http, _Https)


class _Http(urllib.request.HTTPHandler):
    def do_open(self, http_class: Any, req: Any, **options: Any) -> http.client.HTTPResponse:
        return super().do_open(_reading(http_class), req, **options)


class _Https(urllib.request.HTTPSHandler):
    def do_open(self, http_class: Any, req: Any, **options: Any) -> http.client.HTTPResponse:
        return super().do_open(_reading(http_class), req, **options)


def _reading(
    make: Callable[..., http.client.HTTPConnection],
) -> Callable[..., http.client.HTTPConnection]:
    def connection(host: str, **options: Any) -> http.client.HTTPConnection:
        made = make(host, **options)
        send = made.send

        def send_what_is_taken(data: Any) -> None:
            # What was answered before is read next; without an answer, that fails in its turn.
            with suppress(BrokenPipeError, ConnectionResetError):
                send(data)

        made.send = send_what_is_taken  # type: ignore[method-assign]
        return made

    return connection
