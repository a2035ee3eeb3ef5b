"""Web pages of other origins before an edge, through every door of HTTP: what their browsers are
told, and what is served to people who open the edge itself."""

from __future__ import annotations

import json

import pytest

from outrider.testing import eventually
from services.edge.access.config import AccessConfig
from services.edge.access.identity import TenantConfig
from services.edge.http.config import HttpConfig
from services.edge.http.routes import ALL_ROUTES
from tests.api_keys import key_of, text_of
from tests.edge.integration.access_matrix import DOORS, Answer, as_bearer
from tests.edge.integration.chat_routes import CHAT, CHAT_ROUTES
from tests.edge.integration.running import REPLY, Running

PAGE = "https://chat.example"
WANTED = "authorization,content-type,x-stainless-os"
KEY = as_bearer(text_of("acme"))
SAFE = {"cache-control", "content-length", "content-type"}
"""Headers that a page may read in any case."""
OF_SERVERS = {"alt-svc", "connection", "date", "transfer-encoding", ":status"}
"""Headers that are no application's."""

pytestmark = [
    pytest.mark.parametrize("door", DOORS),
    pytest.mark.edge(
        access=AccessConfig(),
        anonymous=False,
        tenants=(TenantConfig("acme", requests_per_minute=8),),
        keys=(key_of("acme"),),
    ),
]
named = pytest.mark.edge(http=HttpConfig(port=0, allowed_origins=(PAGE, "app://obsidian.md")))


def asking(origin: str, method: str = "POST") -> dict[str, str]:
    """The headers of a browser's question before a page's request."""
    return {
        "origin": origin,
        "access-control-request-method": method,
        "access-control-request-headers": WANTED,
    }


def shared(answer: Answer) -> dict[str, str]:
    """The headers of an answer that are about pages."""
    return {
        name: value
        for name, value in answer.headers.items()
        if name.startswith("access-control") or name == "vary"
    }


def check_readable(answer: Answer) -> None:
    """The page may read it, with every header that it has."""
    told = shared(answer)
    shown = told.pop("access-control-expose-headers").split(", ")
    assert told == {
        "vary": "origin",
        "access-control-allow-origin": PAGE,
        "access-control-allow-credentials": "true",
    }
    assert set(shown) == set(answer.headers) - set(shared(answer)) - SAFE - OF_SERVERS
    assert {"x-request-id", "request-id"} <= set(shown)


@named
async def test_a_question_for_an_allowed_page_is_answered_without_a_key(
    door: str, mesh: Running
) -> None:
    async with DOORS[door](mesh) as ask:
        for path in (*(it.path for it in ALL_ROUTES), "/nothing"):
            answer = await ask("OPTIONS", path, headers=asking(PAGE))
            assert (answer.status, answer.body) == (204, b"")
            told = shared(answer)
            assert told.pop("access-control-expose-headers")
            assert told == {
                "vary": "origin",
                "access-control-allow-origin": PAGE,
                "access-control-allow-credentials": "true",
                "access-control-allow-methods": "DELETE, GET, HEAD, POST",
                "access-control-allow-headers": WANTED,
                "access-control-max-age": "7200",
            }
            assert "content-length" not in answer.headers and answer.headers["x-request-id"]
        # It cost the tenant nothing, and the connection goes on.
        after = await ask("POST", CHAT.path, CHAT.body, {"origin": PAGE, **KEY})
        assert after.headers["x-ratelimit-remaining-requests"] == "7"
    sample = "outrider_edge_http_answers_total"
    await eventually(
        lambda: mesh.sample(sample, route="preflight", status="204") == len(ALL_ROUTES) + 1
    )
    await mesh.settled()


@named
async def test_other_pages_and_other_questions_are_refused_as_before(
    door: str, mesh: Running
) -> None:
    async with DOORS[door](mesh) as ask:
        for headers in (
            *(asking(it) for it in ("https://evil.example", "null", "https://chat.example:444")),
            {"origin": PAGE},
            {"access-control-request-method": "POST"},
        ):
            answer = await ask("OPTIONS", CHAT.path, headers=headers)
            assert answer.status == 401
            assert not [it for it in shared(answer) if it.startswith("access-control-allow-m")]
        for origin in ("https://evil.example", "null", ""):
            headers = KEY | ({"origin": origin} if origin else {})
            answer = await ask("POST", CHAT.path, CHAT.body, headers)
            assert answer.status == 200 and shared(answer) == {"vary": "origin"}
    await mesh.settled()


@named
async def test_every_answer_may_be_read_by_an_allowed_page(door: str, mesh: Running) -> None:
    async with DOORS[door](mesh) as ask:
        for route in CHAT_ROUTES:
            for body in (route.body, route.streamed):
                answer = await ask("POST", route.path, body, {"origin": PAGE, **KEY})
                assert answer.status == 200
                check_readable(answer)
        late = await ask("POST", CHAT.path, CHAT.body, {"origin": PAGE, **KEY})
        assert late.status == 429
        shown = late.headers["access-control-expose-headers"]
        assert {"retry-after", "retry-after-ms"} <= set(shown.split(", "))
        check_readable(late)
        for status, method, path, headers in (
            (200, "GET", "/v1/models", KEY),
            (200, "GET", "/openapi.json", {}),
            (401, "POST", CHAT.path, {}),
            (401, "GET", "/v1/models", {"authorization": "Basic x"}),
            (404, "GET", "/nothing", KEY),
            (404, "GET", "/v1/models/nosuch", KEY),
            (405, "GET", CHAT.path, KEY),
            (415, "POST", CHAT.path, KEY),
        ):
            answer = await ask(method, path, None, {"origin": PAGE, **headers})
            assert answer.status == status, (path, answer.body)
            check_readable(answer)
        answer = await ask("POST", CHAT.path, {"model": 7}, {"origin": PAGE, **KEY})
        assert answer.status == 400
        check_readable(answer)
    await mesh.settled()


@pytest.mark.edge(http=HttpConfig(port=0, allowed_origins=("*",)))
async def test_all_pages_may_read_without_credentials(door: str, mesh: Running) -> None:
    async with DOORS[door](mesh) as ask:
        for origin in ("https://any.example", "null"):
            answer = await ask("OPTIONS", CHAT.path, headers=asking(origin))
            told = shared(answer)
            assert (answer.status, told["access-control-allow-origin"]) == (204, "*")
            assert told["access-control-allow-headers"] == WANTED
            assert "access-control-allow-credentials" not in told and "vary" not in told
            answer = await ask("POST", CHAT.path, CHAT.streamed, {"origin": origin, **KEY})
            told = shared(answer)
            assert told.pop("access-control-expose-headers")
            assert told == {"access-control-allow-origin": "*"}
            assert CHAT.text_of(answer.body) == REPLY
    await mesh.settled()


@pytest.mark.edge(http=HttpConfig(port=0))
async def test_no_page_is_told_anything_by_default(door: str, mesh: Running) -> None:
    async with DOORS[door](mesh) as ask:
        assert (await ask("OPTIONS", CHAT.path, headers=asking(PAGE))).status == 401
        answer = await ask("OPTIONS", CHAT.path, headers=asking(PAGE) | KEY)
        assert answer.status == 405 and shared(answer) == {}
        answer = await ask("POST", CHAT.path, CHAT.body, {"origin": PAGE, **KEY})
        assert answer.status == 200 and shared(answer) == {}
    await mesh.settled()


@pytest.mark.edge(http=HttpConfig(port=0))
async def test_the_edge_says_what_it_is(door: str, mesh: Running) -> None:
    async with DOORS[door](mesh) as ask:
        page = await ask("GET", "/docs")
        assert page.status == 200
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert "default-src 'none'" in page.headers["content-security-policy"]
        text = page.body.decode()
        for said in ("Outrider", "/v1/chat/completions", "/v1/messages", "openapi.json"):
            assert said in text
        assert "<script" not in text and text.count("<tr>") == text.count("</tr>") > 10
        head = await ask("HEAD", "/docs")
        assert (head.status, head.body) == (200, b"")
        assert head.headers["content-length"] == str(len(page.body))
        paths = json.loads((await ask("GET", "/openapi.json")).body)["paths"]
        said = paths["/docs"]["get"]["responses"]["200"]["content"]
        assert list(said) == ["text/html; charset=utf-8"]
