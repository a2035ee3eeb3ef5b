"""Requests whose answer may come before all of the body is sent, and the connection's end with it:
a server that takes no body of that size reads no further. urllib by itself says "broken pipe"."""

from __future__ import annotations

import http.client
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any


@cache
def opener() -> urllib.request.OpenerDirector:
    """As urllib.request.urlopen has it, but for such answers, which are read."""
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
