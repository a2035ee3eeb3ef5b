"""Header sections: what is a request and what is none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import MalformedFrameError
from services.edge.http3.limits import alt_svc
from services.edge.http3.messages import (
    Headers,
    Refusal,
    Request,
    check_trailers,
    read_request,
    response_headers,
    scope_of,
    section_bytes,
)

PSEUDO: Headers = [
    (b":method", b"POST"),
    (b":scheme", b"https"),
    (b":authority", b"Edge.test:4433"),
    (b":path", b"/v1/a%20b?x=1&y=%20"),
]


def without(name: bytes) -> Headers:
    return [field for field in PSEUDO if field[0] != name]


def changed(name: bytes, value: bytes) -> Headers:
    return [(n, value if n == name else v) for n, v in PSEUDO]


def read(headers: Headers) -> Request:
    request = read_request(headers)
    assert isinstance(request, Request)
    return request


def test_a_request_becomes_a_scope() -> None:
    request = read([*PSEUDO, (b"content-length", b"3"), (b"x-a", b"1"), (b"x-a", b"2")])
    state = {"pool": object()}
    scope = scope_of(
        request,
        client=("1.2.3.4", 5),
        server=("::1", 6),
        state=state,
        connection={"secret": b"x"},
    )
    assert scope == {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "3",
        "method": "POST",
        "scheme": "https",
        "path": "/v1/a b",
        "raw_path": b"/v1/a%20b",
        "query_string": b"x=1&y=%20",
        "root_path": "",
        "headers": [
            (b"host", b"edge.test:4433"),
            (b"content-length", b"3"),
            (b"x-a", b"1"),
            (b"x-a", b"2"),
        ],
        "client": ("1.2.3.4", 5),
        "server": ("::1", 6),
        "state": state,
        "extensions": {"http.response.trailers": {}, "outrider-connection": {"secret": b"x"}},
    }
    assert scope["state"] is not state, "each request has a copy"


def test_host_may_take_the_place_of_the_authority_and_cookies_are_joined() -> None:
    request = read(
        [*without(b":authority"), (b"cookie", b"a=1"), (b"host", b"h"), (b"cookie", b"b=2")]
    )
    assert request.headers == [(b"host", b"h"), (b"cookie", b"a=1; b=2")]
    assert read([*PSEUDO, (b"host", b"Edge.test:4433")]).headers == [(b"host", b"edge.test:4433")]


MALFORMED: dict[str, Headers] = {
    "nothing": [],
    "no method": without(b":method"),
    "no scheme": without(b":scheme"),
    "no path": without(b":path"),
    "neither authority nor host": without(b":authority"),
    "authority and host that differ": [*PSEUDO, (b"host", b"other")],
    "two hosts": [*without(b":authority"), (b"host", b"a"), (b"host", b"b")],
    "user information": changed(b":authority", b"me@edge.test"),
    "an empty authority": changed(b":authority", b""),
    "a method of two words": changed(b":method", b"GET /"),
    "another scheme": changed(b":scheme", b"ftp"),
    "an empty path": changed(b":path", b""),
    "a relative path": changed(b":path", b"v1"),
    "a path with a space": changed(b":path", b"/a b"),
    "a path with a fragment": changed(b":path", b"/a#b"),
    "a path that is a URL": changed(b":path", b"https://edge.test/"),
    "the same pseudo header twice": [*PSEUDO, (b":path", b"/")],
    "a pseudo header behind a header": [(b"a", b"1"), *PSEUDO],
    "a pseudo header of responses": [(b":status", b"200"), *PSEUDO],
    "a pseudo header that was not offered": [(b":protocol", b"webtransport"), *PSEUDO],
    "an upper-case name": [*PSEUDO, (b"Accept", b"*/*")],
    "an empty name": [*PSEUDO, (b"", b"1")],
    "a name with a space": [*PSEUDO, (b"a b", b"1")],
    "a line break in a value": [*PSEUDO, (b"a", b"1\r\nb: 2")],
    "a zero byte in a value": [*PSEUDO, (b"a", b"1\x002")],
    "a control character in a value": [*PSEUDO, (b"a", b"1\x7f2")],
    "a value that begins with a space": [*PSEUDO, (b"a", b" 1")],
    "a value that ends with a tab": [*PSEUDO, (b"a", b"1\t")],
    "connection": [*PSEUDO, (b"connection", b"close")],
    "keep-alive": [*PSEUDO, (b"keep-alive", b"1")],
    "proxy-connection": [*PSEUDO, (b"proxy-connection", b"close")],
    "transfer-encoding": [*PSEUDO, (b"transfer-encoding", b"chunked")],
    "upgrade": [*PSEUDO, (b"upgrade", b"websocket")],
    "te with something else": [*PSEUDO, (b"te", b"gzip")],
    "a negative content-length": [*PSEUDO, (b"content-length", b"-1")],
    "a content-length with a sign": [*PSEUDO, (b"content-length", b"+1")],
    "a content-length with an underscore": [*PSEUDO, (b"content-length", b"1_0")],
    "an empty content-length": [*PSEUDO, (b"content-length", b"")],
    "a list of content-lengths": [*PSEUDO, (b"content-length", b"1, 1")],
    "two content-lengths": [*PSEUDO, (b"content-length", b"1"), (b"content-length", b"1")],
    "CONNECT with a path": changed(b":method", b"CONNECT"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_what_is_no_request_is_malformed(case: str) -> None:
    with pytest.raises(MalformedFrameError):
        read_request(MALFORMED[case])


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([(b":method", b"CONNECT"), (b":authority", b"elsewhere:443")], 501),
        ([*changed(b":path", b"*")[1:], (b":method", b"OPTIONS")], 501),
    ],
)
def test_what_is_not_served_is_refused(headers: Headers, status: int) -> None:
    refusal = read_request(headers)
    assert isinstance(refusal, Refusal)
    assert dict(refusal.headers)[b":status"] == b"%d" % status
    assert dict(refusal.headers)[b"content-length"] == b"%d" % len(refusal.body)


FIELDS = st.tuples(
    st.sampled_from(
        [n for n, _ in PSEUDO] + [b"host", b"content-length", b"te", b"a", b"A", b"cookie"]
    )
    | st.binary(max_size=4),
    st.sampled_from([v for _, v in PSEUDO] + [b"5", b"trailers"]) | st.binary(max_size=6),
)


@given(st.lists(FIELDS, max_size=8), st.booleans())
def test_any_section_is_a_request_a_refusal_or_malformed(fields: Headers, whole: bool) -> None:
    try:
        request = read_request([*PSEUDO, *fields] if whole else fields)
    except MalformedFrameError:
        return
    if isinstance(request, Request):
        names = [name for name, _ in request.headers]
        assert names[0] == b"host" and names.count(b"host") == 1
        assert names.count(b"cookie") <= 1 and names.count(b"content-length") <= 1
        assert all(name == name.lower() and not name.startswith(b":") for name in names)
        assert request.raw_path.startswith(b"/") and b"?" not in request.raw_path


def test_trailers_are_fields_alone() -> None:
    check_trailers([(b"x-sum", b"1")])
    for bad in ([(b":path", b"/")], [(b"content-length", b"1")], [(b"X", b"1")]):
        with pytest.raises(MalformedFrameError):
            check_trailers(bad)


def test_a_response_has_what_http_allows() -> None:
    fields = [(b"X-A", b" 1 "), (b"Connection", b"close"), (b"Transfer-Encoding", b"chunked")]
    assert response_headers(200, fields) == [(b":status", b"200"), (b"x-a", b"1")]
    for status, bad in (
        (101, []),
        (99, []),
        (600, []),
        (200, [(b"a b", b"1")]),
        (200, [(b"a", b"1\n2")]),
        (200, [(b":status", b"200")]),
    ):
        with pytest.raises(ValueError, match=r"status|header"):
            response_headers(status, bad)


def test_a_section_counts_32_bytes_for_a_field() -> None:
    assert section_bytes([(b"a", b"bc"), (b"", b"")]) == 3 + 2 * 32


def test_clients_over_tcp_are_told_of_the_port() -> None:
    assert alt_svc(4433, 86_400) == b'h3=":4433"; ma=86400'
    assert alt_svc(4433, 0) == b"clear"
