"""Requests and what chats tell, for the tests of HTTP APIs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from outrider.errors import InvalidRequestError
from outrider.session.client import Accepted, Committed, Done
from outrider.session.types import FinishReason, Timings, Usage
from services.edge.http.api import ApiRequest, ChatApi, PlannedReply
from services.edge.session.events import ClientEvent

IDENTITY = b"\x0a" * 32
USER = {"role": "user", "content": "hello"}


def asked(body: object, **options: Any) -> ApiRequest:
    """A request as it comes."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return ApiRequest(
        data,
        now_s=1_700_000_000,
        random_seed=77,
        max_choices=options.pop("most", 8),
        default_max_tokens=options.pop("default_max_tokens", 2048),
        **options,
    )


def planned(api: ChatApi, body: dict[str, Any], **options: Any) -> PlannedReply:
    """How a request is answered."""
    return api.plan(asked(body, **options))


def refusal(api: ChatApi, body: object, **options: Any) -> InvalidRequestError:
    """Why a request is none."""
    with pytest.raises(InvalidRequestError) as caught:
        api.plan(asked(body, **options))
    return caught.value


def done(upto: int, reason: FinishReason = FinishReason.STOP, **usage: Any) -> Done:
    """The end of a chat."""
    counts = {"prompt_tokens": 5, "completion_tokens": upto} | usage
    return Done(reason, Usage(**counts), Timings(), Timings(ttft_ms=2), upto, "r", "replica")


def chat_of(*texts: str) -> list[ClientEvent]:
    """What a chat tells that commits these texts, a token each."""
    commits = [
        Committed(text, (number,), number + 1, model_identity=IDENTITY)
        for number, text in enumerate(texts)
    ]
    return [Accepted("r1", "small", 5), *commits, done(len(texts))]


def ending(*texts: str, **usage: Any) -> list[ClientEvent]:
    """What a chat tells that commits these texts and has used so much."""
    return [*chat_of(*texts)[:-1], done(len(texts), **usage)]


def told(reply: PlannedReply, *chats: list[ClientEvent]) -> bytes:
    """All that a client is sent, if each of its chats tells these events in turn."""
    sent = b""
    for index, events in enumerate(chats):
        for event in events:
            sent += reply.writer.take(index, event)
    return sent + reply.writer.whole()


def events_of(stream: bytes) -> list[dict[str, str]]:
    """The events of a stream, each with its fields."""
    found = []
    for block in stream.decode().removesuffix("\n\n").split("\n\n"):
        lines = [line.partition(": ") for line in block.split("\n")]
        found.append({name or "comment": value for name, _, value in lines})
    return found


def data_of(stream: bytes) -> list[Any]:
    """What the events of a stream say, but for the word that ends some."""
    events = events_of(stream) if stream else []
    return [json.loads(it["data"]) for it in events if it["data"] != "[DONE]"]


def objects_of(stream: bytes) -> list[dict[str, Any]]:
    """The JSON of the events that have no type of their own."""
    plain = [it["data"] for it in events_of(stream) if "event" not in it and "data" in it]
    return [json.loads(data) for data in plain if data != "[DONE]"]
