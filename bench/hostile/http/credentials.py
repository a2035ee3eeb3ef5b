"""Keys that are wrong, and paths and methods that are none."""

from __future__ import annotations

import base64
import json
import random
from typing import Final

from bench.hostile.http.bodies import CHAT, POSTS, ask_all
from bench.hostile.http.sending import Ration, key_of, missed
from bench.hostile.http.wire1 import Asker, head, post
from bench.hostile.target import Findings, Target

_REFUSED: Final = range(400, 500)
_BODY: Final = json.dumps({"messages": [{"role": "user", "content": "Let me in."}]}).encode()
_LISTS: Final = ("/v1/models", "/v1/models/x", "/v1/responses/x")


def wrong(key: str) -> list[tuple[bytes, ...]]:
    """Header fields with everything but this key."""
    chance = random.Random(50)
    flipped = [key[:at] + ("a" if key[at] != "a" else "b") + key[at + 1 :] for at in (3, 9, -1)]
    part = base64.urlsafe_b64encode(b'{"alg":"none","sub":"development"}').decode().rstrip("=")
    basic = base64.b64encode(f"user:{key}".encode()).decode()
    texts = (
        *flipped, key[:-1], key + "x", key.upper(), key[:10], "or_", "x" * 9000, f"{part}.{part}.",
        f"{part}.{part}.{part}", chance.randbytes(30).hex(), "null", "sk-" + "0" * 48, "' or 1=1",
    )  # fmt: skip
    made: list[tuple[bytes, ...]] = [(), (b"Authorization: Bearer",), (b"Authorization:",)]
    made += [(f"Authorization: Bearer {text}".encode(),) for text in texts]
    made += [(f"x-api-key: {text}".encode(),) for text in texts]
    return [
        *made,
        (f"Authorization: Basic {basic}".encode(),),
        (f"Authorization: {key}".encode(),),
        (f"Authorization: Bearer Bearer {key}".encode(),),
        (f"Cookie: key={key}".encode(),),
        (f"Proxy-Authorization: Bearer {key}".encode(),),
        (b"Authorization: Bearer \xff\xfe\x80",),
        (b"Authorization: Bearer x", b"x-api-key: y"),
        (b"X-Forwarded-User: development", b"X-Outrider-Client: " + b"00" * 16),
    ]


async def wrong_keys(target: Target, ration: Ration, findings: Findings) -> None:
    """Every route with keys that are damaged, cut, in the wrong place, or none: all are refused,
    and nothing is computed."""
    kinds = wrong(key_of(target))
    routes = (*POSTS, *_LISTS)
    asker = Asker(target, findings)
    try:
        while (number := ration.take()) is not None:
            fields, path = kinds[number % len(kinds)], routes[number % len(routes)]
            is_list = path in _LISTS
            data = head(f"GET {path} HTTP/1.1", *fields) if is_list else post(path, _BODY, *fields)
            answer = await asker.ask(data)
            if answer is not None and answer.status not in _REFUSED:
                missed(findings, f"{path} answered {answer.status} to {fields!r:.100}")
    finally:
        await asker.close()


async def unknown_routes(target: Target, ration: Ration, findings: Findings) -> None:
    """Paths that are none, that climb or hide in escapes, and methods that nothing takes, with a
    valid key."""
    key = b"Authorization: Bearer " + key_of(target).encode()
    paths = (
        "/", "//", "/v1", "/v1/", f"{CHAT}/", f"/.{CHAT}", f"/x/..{CHAT}", "/metrics", "/health",
        "/admin", "/v1/chat%2fcompletions", "/%76%31/models", "/v1/models/%2e%2e%2f%2e%2e", "/.env",
        "/v1/models/" + "m" * 5000, "/v1/models/%00", "/v1/models/%ff", "/v1/responses/%0d%0aX:y",
        "/V1/MODELS", "/v1/models;x", "/v1/models?" + "a=b&" * 2000, "/openapi.json/x", "/docs",
        "/v1/responses/x/cancel", "/v1/responses/x/input_items", "/v1/responses/compact", "/ws",
    )  # fmt: skip
    methods = ("GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "X" * 50, "PROPFIND", "QUERY")

    def made(number: int) -> bytes:
        path, method = paths[number % len(paths)], methods[number // len(paths) % len(methods)]
        if method in ("GET", "DELETE", "OPTIONS"):
            return head(f"{method} {path} HTTP/1.1", key)
        return post(path, _BODY, key).replace(b"POST", method.encode(), 1)

    await ask_all(target, ration, findings, made)


async def odd_requests(target: Target, ration: Ration, findings: Findings) -> None:
    """Requests for replies with media types, codings, ids and events that are none, with a valid
    key; and those that say to wait before they send."""
    key = b"Authorization: Bearer " + key_of(target).encode()
    small = json.dumps({"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}).encode()
    fields = (
        b"Content-Encoding: gzip", b"Content-Encoding: identity, br", b"Expect: 100-continue",
        b"Expect: x", b"Idempotency-Key: " + b"k" * 9000, b"Idempotency-Key: \x01", b"Accept: x/y",
        b"Idempotency-Key: a\r\nLast-Event-ID: 99999999999999", b"Last-Event-ID: 5-5,5-5,5-5",
        b"Idempotency-Key: a\r\nLast-Event-ID: -1--1", b"X-Request-Id: " + b"\xff" * 300,
        b"X-Request-Id: " + b"r" * 5000, b"traceparent: 00-" + b"0" * 32 + b"-x-01",
        b"traceparent: " + b"f" * 4000, b"tracestate: " + b"a=b," * 1000, b"Origin: null",
        b"X-Outrider-Client: zz", b"X-Outrider-Client: " + b"0" * 9000,
        b"Accept-Encoding: gzip;q=x",
        b"Content-Type: text/html", b"Content-Type: application/json; charset=utf-7",
        b"anthropic-version: \xff", b"anthropic-beta: " + b"x," * 1000, b"OpenAI-Organization: x",
    )  # fmt: skip

    def made(number: int) -> bytes:
        return post(POSTS[number % len(POSTS)], small, key, fields[number % len(fields)])

    await ask_all(target, ration, findings, made)
