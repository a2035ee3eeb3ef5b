"""The OpenAPI document is valid, and says of every route what it takes and gives."""

from __future__ import annotations

import json

from openapi_spec_validator import validate

from services.edge.access.limits import Limited, RateState, RateWords, rate_headers
from services.edge.http.openapi import document
from services.edge.http.routes import ALL_ROUTES, Access

DOCUMENT = json.loads(document("1.2.3"))


def test_it_is_valid() -> None:
    validate(DOCUMENT)
    assert DOCUMENT["info"]["version"] == "1.2.3"


def test_every_route_is_in_it_and_nothing_else() -> None:
    paths = {path: set(methods) for path, methods in DOCUMENT["paths"].items()}
    routes = [(it.path.replace(":path", ""), it.method.lower()) for it in ALL_ROUTES]
    assert {(path, it) for path, methods in paths.items() for it in methods} == set(routes)
    for route in ALL_ROUTES:
        operation = DOCUMENT["paths"][route.path.replace(":path", "")][route.method.lower()]
        assert (operation.get("security") == []) == (route.access is Access.PUBLIC)
        assert ("requestBody" in operation) == (route.request is not None)
        assert ("200" in operation["responses"]) == (route.response is not None)
        content = operation["responses"].get("200", {}).get("content", {})
        assert ("text/event-stream" in content) == (route.event is not None)
        assert ("401" in operation["responses"]) == (route.access is not Access.PUBLIC)


def test_events_are_told_one_by_one() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    for route in ALL_ROUTES:
        if route.event is None:
            continue
        operation = DOCUMENT["paths"][route.path][route.method.lower()]
        event = operation["responses"]["200"]["content"]["text/event-stream"]["schema"]
        assert event["required"] == ["data"]
        data = event["properties"]["data"]
        ends = data["anyOf"][0] if "anyOf" in data else None
        is_done_told = route.path in ("/v1/chat/completions", "/v1/completions")
        assert ends == ({"const": "[DONE]"} if is_done_told else None)
        of_json = data["anyOf"][1] if is_done_told else data
        names = {it["$ref"].rpartition("/")[2] for it in of_json["contentSchema"]["anyOf"]}
        assert route.error.__name__ in names <= set(schemas) and len(names) > 1
        assert ("ProvisionalText" in names) == (route.request is not None), "of replies"


def test_it_names_the_headers_that_tell_of_limits() -> None:
    state = RateState(1, 1, 0.0)
    for path, words in (
        ("/v1/chat/completions", RateWords.OPENAI),
        ("/tokenize", RateWords.OPENAI),
        ("/v1/messages", RateWords.ANTHROPIC),
    ):
        responses = DOCUMENT["paths"][path]["post"]["responses"]
        sent = set(rate_headers(dict.fromkeys(Limited, state), words, 0.0))
        assert set(responses["200"]["headers"]) == sent
        assert set(responses["429"]["headers"]) == sent | {"retry-after", "retry-after-ms"}
        assert sent <= set(DOCUMENT["components"]["headers"])
    assert "headers" not in DOCUMENT["paths"]["/v1/models"]["get"]["responses"]["200"]
