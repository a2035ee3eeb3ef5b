"""Foreign drafts over gRPC at a mesh of real processes: what is killed costs a pause and no
token."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from bench.faults.chats import ReferenceChat, make_reference_chats
from bench.harness.mesh import Mesh, Service, mesh, replica_rows
from outrider.errors import RateLimitedError, UnauthenticatedError
from outrider.models.chat import Message
from outrider.session.types import FinishReason
from outrider.testing import free_tcp_port
from outrider.verify_client import Drafter, Verification, VerifyClient
from tests.api_keys import key_of, text_of, write_keys

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(300)]
NUM_TOKENS = 150


@dataclass(frozen=True)
class Processes:
    """Two of each, but for the router."""

    replicas: Sequence[Service]
    edges: Sequence[Service]

    def client(self, key: str = "acme") -> VerifyClient:
        where = [f"127.0.0.1:{edge.ports.http}" for edge in self.edges]
        return VerifyClient(where, key=text_of(key), insecure=True)


@asynccontextmanager
async def processes() -> AsyncIterator[Processes]:
    async with mesh("verify") as made:
        write_keys(made.folder / "keys.json", key_of("acme"), key_of("few"))
        replicas = [_replica(made, f"replica-{number}") for number in range(2)]
        rows = {"replicas": replica_rows(replicas), "quarantine": {"max_failures": 1_000_000}}
        router = made.service("router", "router", rows, region="near")
        edges = [_edge(made, number, router) for number in range(2)]
        # The first edge makes the certificate that the other one finds.
        for group in ([*replicas], [router], *([edge] for edge in edges)):
            await made.start(*group)
        yield Processes(replicas, edges)


def _replica(made: Mesh, name: str) -> Service:
    values = {
        "replica": name,
        "engine": "fake",
        "threads": 1,
        "kv_bytes": 1 << 28,
        "fake_call_ms": 5.0,
    }
    return made.service(name, "inference", values, region="near")


def _edge(made: Mesh, number: int, router: Service) -> Service:
    values = {
        "name": f"edge-{number}",
        "routers": (router.address,),
        "state_dir": str(made.folder),
        "drafter.model": "none",
        "http": {"port": free_tcp_port()},
        "tenants": ({"name": "acme"}, {"name": "few", "max_sessions": 1}),
    }
    return made.service(f"edge-{number}", "edge", values, region="near")


class Mostly:
    """Knows the reply, but for every seventh token."""

    def __init__(self, known: ReferenceChat) -> None:
        self._ids = known.ids
        self.num_prompt = 0

    def draft(self, ids: Sequence[int], max_tokens: int) -> Sequence[int]:
        at = len(ids) - self.num_prompt
        end = min(at + max_tokens, len(self._ids))
        return [self._ids[i] if i % 7 else self._ids[i] ^ 1 for i in range(max(at, 0), end)]


def verify(edge: VerifyClient, known: ReferenceChat, drafter: Drafter) -> Verification:
    return edge.verify([Message("user", known.prompt)], drafter, sampling=known.sampling)


async def test_kills_cost_a_pause_and_no_token() -> None:
    greedy, sampled = make_reference_chats("fake", num_tokens=NUM_TOKENS)[:2]
    async with processes() as running:
        for known, victims in ((greedy, running.replicas), (sampled, running.edges)):
            drafter = Mostly(known)
            async with running.client() as edge:
                session = verify(edge, known, drafter)
                num_kills = 0
                async for tokens in session:
                    drafter.num_prompt = len(session.prompt_ids)
                    if not num_kills and len(session.ids) > 20:
                        assert tokens.base < NUM_TOKENS - 20, "in the middle of the reply"
                        # Whichever serves it: the client began at the first edge.
                        num_kills += 1
                        victims[0].kill()
                        if victims is running.replicas:
                            running.replicas[0].spawn()
                            await running.replicas[0].ready()
                            running.replicas[1].kill()
            reply = session.reply
            assert (reply.ids, reply.text) == (known.ids, known.text)
            assert reply.finish_reason is FinishReason.LENGTH and not reply.inexact
            assert reply.num_accepted > 0
        assert session.reply.num_calls > 1, "another edge went on"


async def test_keys_and_limits_of_real_edges() -> None:
    (known, *_) = make_reference_chats("fake", num_tokens=NUM_TOKENS)[:1]
    async with processes() as running, running.client("few") as edge:
        with pytest.raises(UnauthenticatedError):
            async with running.client("nobody's") as other:
                await anext(aiter(verify(other, known, Mostly(known))))
        first = verify(edge, known, Mostly(known))
        tokens = aiter(first)
        await anext(tokens)
        with pytest.raises(RateLimitedError):
            await anext(aiter(verify(edge, known, Mostly(known))))
        async for _ in tokens:
            pass
        assert first.reply.ids == known.ids
