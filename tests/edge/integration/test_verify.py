"""Clients that draft by means of their own, over gRPC at a real edge before a scripted region."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from outrider.errors import UnauthenticatedError
from outrider.models.vocabulary import Vocabulary
from outrider.verify_client import VerifyClient
from services.edge.http.config import HttpConfig
from tests.api_keys import key_of, text_of
from tests.edge.integration.running import REPLY, Running

pytestmark = pytest.mark.edge(http=HttpConfig(port=0), anonymous=False, keys=(key_of("acme"),))


class Knows:
    """Drafts a text that it knows, behind a prompt of any length."""

    def __init__(self, reply: Sequence[int], num_prompt: int) -> None:
        self.reply = tuple(reply)
        self.num_prompt = num_prompt

    def draft(self, ids: Sequence[int], max_tokens: int) -> Sequence[int]:
        at = len(ids) - self.num_prompt
        return self.reply[at : at + max_tokens]


def client(mesh: Running, key: str = "acme") -> VerifyClient:
    return VerifyClient([f"127.0.0.1:{mesh.ports.http}"], key=text_of(key), insecure=True)


async def test_drafts_are_verified(mesh: Running, words: Vocabulary) -> None:
    mesh.region.hold(4)
    drafter = Knows(words.encode(REPLY), len("hello"))
    async with client(mesh) as edge:
        session = edge.verify(words.encode("hello"), drafter, vocabulary_digest=words.digest)
        seen = []
        async for tokens in session:
            seen.append(tokens)
            mesh.region.gate.set()
        assert session.reply.text == REPLY
    assert session.reply.ids[:-1] == tuple(words.encode(REPLY))


async def test_who_has_no_good_key_is_refused(mesh: Running) -> None:
    async with client(mesh, "nobody's") as edge:
        session = edge.verify("hello", Knows((), 0))
        with pytest.raises(UnauthenticatedError, match="not known here"):
            async for _ in session:
                raise AssertionError("nobody's are verified")
