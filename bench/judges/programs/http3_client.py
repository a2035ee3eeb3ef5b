"""niquests with qh3: HTTP/3 of another implementation than ours."""

from __future__ import annotations

import json
from typing import Any

import niquests  # type: ignore[import-not-found]

from bench.judges.programs.trying import Api, check, try_all

_HTTP3 = 30
_NUM_AT_ONCE = 8


def _session(api: Api, *, key: str | None = None, multiplexed: bool = False) -> Any:
    session = niquests.Session(multiplexed=multiplexed)
    session.quic_cache_layer.add_domain("localhost", api.quic_port)
    session.trust_env = False  # what the environment trusts would take the place of:
    session.verify = api.ca
    session.headers["Authorization"] = f"Bearer {api.key if key is None else key}"
    return session


def _url(api: Api, path: str) -> str:
    return f"https://localhost:{api.quic_port}{path}"


def _question(api: Api, **more: object) -> dict[str, object]:
    messages = [{"role": "user", "content": "Count to five."}]
    return {"model": api.model, "messages": messages, "max_tokens": 16, **more}


def models(api: Api) -> str:
    """GET."""
    with _session(api) as session:
        answer = session.get(_url(api, "/v1/models"))
    check(answer.http_version == _HTTP3, f"HTTP version {answer.http_version}")
    check(answer.status_code == 200, answer.text)
    return ", ".join(row["id"] for row in answer.json()["data"])


def chat(api: Api) -> str:
    """POST."""
    with _session(api) as session:
        answer = session.post(_url(api, "/v1/chat/completions"), json=_question(api, seed=1))
    check(answer.http_version == _HTTP3, f"HTTP version {answer.http_version}")
    check(answer.status_code == 200, answer.text)
    return f"{answer.json()['usage']['completion_tokens']} tokens"


def streamed_chat(api: Api) -> str:
    """A stream of events says what the whole reply says."""
    path = _url(api, "/v1/chat/completions")
    with _session(api) as session:
        whole = session.post(path, json=_question(api, seed=1)).json()
        answer = session.post(path, json=_question(api, seed=1, stream=True), stream=True)
        lines = [line for line in answer.iter_lines() if line]
    check(answer.http_version == _HTTP3, f"HTTP version {answer.http_version}")
    check(lines[-1] == b"data: [DONE]", lines[-1])
    events = [json.loads(line.removeprefix(b"data: ")) for line in lines[:-1]]
    deltas = [choice["delta"] for event in events for choice in event["choices"]]
    said = "".join(delta.get("content") or "" for delta in deltas)
    check(said == whole["choices"][0]["message"]["content"], said)
    return f"{len(events)} events, the same text"


def many_at_once(api: Api) -> str:
    """Several requests on one connection."""
    with _session(api, multiplexed=True) as session:
        path = _url(api, "/v1/chat/completions")
        answers = [session.post(path, json=_question(api)) for _ in range(_NUM_AT_ONCE)]
        session.gather()
    statuses = [answer.status_code for answer in answers]
    check(statuses == [200] * _NUM_AT_ONCE, statuses)
    return f"{_NUM_AT_ONCE} answers"


def wrong_key(api: Api) -> str:
    """Refused."""
    with _session(api, key="wrong") as session:
        answer = session.post(_url(api, "/v1/chat/completions"), json=_question(api))
    check(answer.http_version == _HTTP3, f"HTTP version {answer.http_version}")
    check(answer.status_code == 401, answer.text)
    return str(answer.json()["error"]["code"])


def unknown_model(api: Api) -> str:
    """Not found."""
    with _session(api) as session:
        body = _question(api) | {"model": "no-such-model"}
        answer = session.post(_url(api, "/v1/chat/completions"), json=body)
    check(answer.status_code == 404, answer.text)
    return str(answer.json()["error"]["code"])


if __name__ == "__main__":
    try_all(
        {
            "models": models,
            "a chat": chat,
            "a streamed chat": streamed_chat,
            "eight chats on one connection": many_at_once,
            "a wrong key": wrong_key,
            "an unknown model": unknown_model,
        }
    )
