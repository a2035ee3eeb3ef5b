"""What the access matrix is made of: credentials that are refused, the doors, and a good request of
every route and every first frame."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

from httpx2 import AsyncClient

from outrider.access.api_keys import USER_SCOPES, Scope
from outrider.client.protocol import HTTP_PATH
from outrider.models.vocabulary import Vocabulary
from outrider.session.types import Priority
from outrider.testing import eventually
from outrider.v1 import edge_pb2
from services.edge.access.config import AccessConfig, JwtConfig
from services.edge.access.identity import TenantConfig
from services.edge.http.config import HttpConfig
from services.edge.http.verifying import PATH
from tests.api_keys import key_of, text_of
from tests.edge.access.issuer import AUDIENCE, ISSUER, jwk, key_set, token
from tests.edge.http3.client import h3_client
from tests.edge.integration.http_client import serving_http
from tests.edge.integration.running import REPLY, Running

FOREVER: Final = 4e9
"""Seconds since 1970: no test outlives it."""
FEW: Final = 4
"""Requests a minute of the tenant whose limits are looked at: one that is counted shows."""
MODEL: Final = "other"
"""Not the edge's first model: nobody's request that is refused may have it loaded."""
MESSAGES: Final = [{"role": "user", "content": "hello"}]

# Credentials.

REFUSED: Final[Mapping[str, tuple[str, int]]] = {
    "none": ("", 401),
    "unknown": (text_of("nobody's"), 401),
    "a wrong secret": (text_of("good")[:-4] + "0000", 401),
    "an id alone": (text_of("good")[:15], 401),
    "expired": (text_of("expired"), 401),
    "revoked": (text_of("revoked"), 401),
    "no token": ("a.b.c", 401),
    "a huge token": ("x" * 2700 + "." + "y" * 2700 + "." + "z" * 2700, 401),
    "too long": ("x" * 8193, 400),
    "an expired token": (token(), 401),
    "a token of another key": (token(exp=FOREVER, number=1), 401),
    "a token for others": (token(exp=FOREVER, aud="others"), 401),
    "a token of another issuer": (token(exp=FOREVER, iss="https://evil.example"), 401),
    "a token of an unknown tenant": (token(exp=FOREVER, tenant="strangers"), 403),
    "a token for nothing here": (token(exp=FOREVER, scope="openid"), 403),
}
"""The credential, and the status that HTTP answers with."""
TENANTS: Final = (
    TenantConfig("acme", requests_per_minute=FEW),
    TenantConfig("bolt"),
    TenantConfig("free"),
    TenantConfig("elsewhere", models=("small",)),
)
GRANTED: Final = USER_SCOPES | {Scope.MESH}
"""Scopes that some route asks for."""
KEYS: Final = (
    key_of("acme"),
    key_of("bolt"),
    key_of("good", "free", scopes=GRANTED),
    key_of("expired", "free", expires=1.0),
    key_of("revoked", "free", revoked=1.0),
    key_of("elsewhere"),
    key_of("low", "free", max_priority=Priority.LOW),
    *(key_of(f"no-{it.value}", "free", scopes=GRANTED - {it}) for it in GRANTED),
)


def without(scope: Scope) -> str:
    """A good key that is for everything but this."""
    return text_of(f"no-{scope.value}")


# Requests over HTTP.


@dataclass(frozen=True, slots=True)
class Good:
    """A request that somebody with a good credential is served."""

    path: str
    body: Mapping[str, Any] | None = None
    status: int = 200
    computes: bool = False
    """Whether a region is asked."""
    names_model: bool = True
    """Whether it is about a model, which a key may not be for."""
    public: bool = False
    """Whether everybody is served. Whoever sets it says why."""


_CHAT: Final = {"model": MODEL, "messages": MESSAGES}
_RESPONSE: Final = {"model": MODEL, "input": "hello"}
_MESSAGE: Final = _CHAT | {"max_tokens": 100}
GOOD: Final[Mapping[tuple[str, str], Good]] = {
    ("POST", "/v1/chat/completions"): Good("/v1/chat/completions", _CHAT, computes=True),
    # The text is computed while it is typed, for who may have chats.
    ("POST", "/v1/chat/typing"): Good(
        "/v1/chat/typing",
        {"id": "a" * 16, "text": "hello", "request": {"model": MODEL, "messages": []}},
    ),
    ("POST", "/v1/completions"): Good(
        "/v1/completions", {"model": MODEL, "prompt": "hello", "max_tokens": 100}, computes=True
    ),
    # None of the models here embeds: tests/e2e/test_embeddings.py has one.
    ("POST", "/v1/embeddings"): Good(
        "/v1/embeddings", {"model": MODEL, "input": "hello"}, status=404
    ),
    ("POST", "/v1/responses"): Good("/v1/responses", _RESPONSE, computes=True),
    ("POST", "/v1/responses/input_tokens"): Good("/v1/responses/input_tokens", _RESPONSE),
    ("POST", "/v1/messages"): Good("/v1/messages", _MESSAGE, computes=True),
    ("POST", "/v1/messages/count_tokens"): Good("/v1/messages/count_tokens", _CHAT),
    ("GET", "/v1/models"): Good("/v1/models", names_model=False),
    ("GET", "/v1/mesh"): Good("/v1/mesh", names_model=False),
    ("GET", "/v1/models/{model:path}"): Good(f"/v1/models/{MODEL}"),
    ("POST", "/tokenize"): Good("/tokenize", {"model": MODEL, "prompt": "hello"}),
    ("POST", "/detokenize"): Good("/detokenize", {"model": MODEL, "tokens": [1, 2]}),
    # Responses are not stored: nobody's is found.
    **{
        (method, f"/v1/responses/{path}"): Good(
            f"/v1/responses/{path.replace('{response_id}', 'resp_1')}",
            status=404,
            names_model=False,
        )
        for method, path in (
            ("POST", "compact"),
            ("GET", "{response_id}"),
            ("DELETE", "{response_id}"),
            ("POST", "{response_id}/cancel"),
            ("GET", "{response_id}/input_items"),
        )
    },
    # It names no request that anybody made.
    ("DELETE", "/v1/chat/completions"): Good("/v1/chat/completions", status=400, names_model=False),
    # The native protocol, which JSON does not speak; its first frames are below.
    ("POST", HTTP_PATH): Good(HTTP_PATH, {}, status=415, names_model=False),
    # gRPC, which JSON is not; tests/edge/integration/test_verify.py calls it.
    ("POST", PATH): Good(PATH, {}, status=415, names_model=False),
    # What can be asked, for programs that make clients. It names no model, key or tenant.
    ("GET", "/openapi.json"): Good("/openapi.json", names_model=False, public=True),
    # The same for people.
    ("GET", "/"): Good("/", names_model=False, public=True),
    ("GET", "/docs"): Good("/docs", names_model=False, public=True),
    # The chat page and its files are the same for everybody and hold nothing of any chat.
    ("GET", "/ui"): Good("/ui", names_model=False, public=True),
    ("GET", "/ui/static/{digest}/{name}"): Good(
        "/ui/static/any/base.css", names_model=False, public=True
    ),
    # The page for operators, which holds nothing, and the name of this edge.
    ("GET", "/ui/mesh"): Good("/ui/mesh", names_model=False, public=True),
    ("GET", "/ui/settings.json"): Good("/ui/settings.json", names_model=False, public=True),
    ("GET", "/ui/transport.json"): Good("/ui/transport.json", names_model=False, public=True),
}
"""By method and path of the table of routes."""


# Doors.


@dataclass(frozen=True, slots=True)
class Answer:
    """Of one request."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Ask(Protocol):
    """Asks through one door."""

    async def __call__(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] = {},
    ) -> Answer:
        """The whole answer."""
        ...


def as_bearer(credential: str) -> dict[str, str]:
    """Headers that bring it."""
    return {"authorization": f"Bearer {credential}"} if credential else {}


@asynccontextmanager
async def _over_tcp(mesh: Running, *, http2: bool) -> AsyncIterator[Ask]:
    where = f"http://127.0.0.1:{mesh.ports.http}"
    async with AsyncClient(base_url=where, timeout=30, http1=not http2, http2=http2) as client:

        async def ask(
            method: str,
            path: str,
            body: Mapping[str, Any] | None = None,
            headers: Mapping[str, str] = {},
        ) -> Answer:
            found = await client.request(method, path, json=body, headers=headers)
            return Answer(found.status_code, dict(found.headers), found.content)

        yield ask


@asynccontextmanager
async def _over_http3(mesh: Running) -> AsyncIterator[Ask]:
    async with h3_client(mesh.ports.main, mesh.ca) as client:

        async def ask(
            method: str,
            path: str,
            body: Mapping[str, Any] | None = None,
            headers: Mapping[str, str] = {},
        ) -> Answer:
            fields = [(name.encode(), value.encode()) for name, value in headers.items()]
            data = None
            if body is not None:
                data = json.dumps(body).encode()
                fields.append((b"content-type", b"application/json"))
            found = await client.ask(method, path, data, fields).whole()
            assert found.reset_code is None, (method, path)
            named = {name.decode(): value.decode() for name, value in found.headers.items()}
            return Answer(found.status, named, found.body)

        yield ask


DOORS: Final[Mapping[str, Callable[[Running], AbstractAsyncContextManager[Ask]]]] = {
    "HTTP/1.1": partial(_over_tcp, http2=False),
    "HTTP/2": partial(_over_tcp, http2=True),
    "HTTP/3": _over_http3,
}


# First frames of the native protocol.


def _chat(key: str, **fields: Any) -> edge_pb2.ClientFrame:
    chat = edge_pb2.ChatRequest(model=MODEL, **fields)
    chat.credential.key = key
    if not fields.get("resume"):
        chat.messages.add(role="user", content="hello")
    return edge_pb2.ClientFrame(chat=chat)


def _typed(key: str) -> edge_pb2.ClientFrame:
    typed = edge_pb2.TypedText(model=MODEL, text="Which trains leave first? " * 20)
    typed.credential.key = key
    return edge_pb2.ClientFrame(typed=typed)


def _tokenize(key: str) -> edge_pb2.ClientFrame:
    asked = edge_pb2.TokenizeText(model=MODEL, text="hello")
    asked.credential.key = key
    return edge_pb2.ClientFrame(tokenize=asked)


@dataclass(frozen=True, slots=True)
class FirstFrame:
    """A kind of frame that may come first on a stream."""

    made: Mapping[str, Callable[[str], edge_pb2.ClientFrame]]
    """With this credential, by what it is like."""
    answered: bool = True
    """Whether who has no good credential is told so; otherwise the stream ends."""
    scope: Scope = Scope.CHAT
    """That a credential needs for it."""
    refused_as: str = ""
    """The reason that everybody is refused for, since it cannot come first; empty: it can."""


FIRST_FRAMES: Final[Mapping[str, FirstFrame]] = {
    "chat": FirstFrame(
        {
            "messages": _chat,
            "thin": lambda key: _chat(key, thin=True),
            "with an idempotency key": lambda key: _chat(key, idempotency_key="k"),
            "resumed": lambda key: _chat(
                key, resume=edge_pb2.ResumePoint(resume_token="x" * 32), idempotency_key="k"
            ),
        }
    ),
    "typed": FirstFrame({"text": _typed}, answered=False),
    "tokenize": FirstFrame({"text": _tokenize}, scope=Scope.TOKENIZE),
    "cancel": FirstFrame(
        {"alone": lambda key: edge_pb2.ClientFrame(cancel=edge_pb2.CancelChat())},
        refused_as="MALFORMED_FRAME",
    ),
    "acknowledge": FirstFrame(
        {"alone": lambda key: edge_pb2.ClientFrame(acknowledge=edge_pb2.AcknowledgeToken())},
        refused_as="MALFORMED_FRAME",
    ),
    # The one question that everybody may ask; it names nothing where nobody comes in without a key.
    "describe": FirstFrame(
        {"alone": lambda key: edge_pb2.ClientFrame(describe=edge_pb2.DescribeEdge())}
    ),
}


# The edge.

_COMPUTED: Final = (
    "outrider_edge_chats_total",
    "outrider_edge_tokens_total",
    "outrider_edge_prefilled_tokens_total",
)


def check_untouched(mesh: Running) -> None:
    """Nothing was opened at the region, no model loaded, and nothing counted for anybody."""
    assert mesh.region.opened == []
    assert mesh.of_model("outrider_edge_model_loads_total", MODEL) == 0
    assert mesh.edge.telemetry.num_chats == 0
    samples = [it for metric in mesh.metrics.registry.collect() for it in metric.samples]
    assert [it for it in samples if it.name in _COMPUTED and it.value] == []


@asynccontextmanager
async def closed_edge(
    words: Vocabulary, folder: Path, *, only_http: bool = False, tls: bool = False
) -> AsyncIterator[Running]:
    """It serves two models to tenants with keys and to those of an issuer of tokens, and nobody
    else; over HTTP alone nobody else, if `only_http`. `tls`: over TCP, too."""
    file = folder / "jwks.json"
    file.write_bytes(key_set(jwk("ES256", "k")))
    async with serving_http(
        words,
        folder,
        REPLY,
        anonymous=only_http,
        access=AccessConfig(),
        http=HttpConfig(port=0, tls="on" if tls else "auto"),
        jwt=JwtConfig(ISSUER, AUDIENCE, jwks_file=file),
        models=("small", MODEL),
        tenants=TENANTS,
        keys=KEYS,
    ) as mesh:
        issuer = mesh.edge._issuer
        assert issuer is not None
        await eventually(lambda: issuer.num_fetched > 0)
        yield mesh
