"""Two clients of a whole mesh, real but for its engine: what one can read of the other there."""

from __future__ import annotations

from pathlib import Path

from outrider.client import Accepted, Client, Message, SamplingParams, connect
from outrider.models.vocabulary import Vocabulary
from outrider.v1 import router_pb2
from tests.telemetry.mesh import whole_mesh

SECRET = "The patient in ward seven is called Miriam."
ONE = SamplingParams(max_tokens=1, ignore_eos=True)


async def cached(client: Client, text: str, *, thin: bool = False) -> int:
    """What a question of one token is told of the cache."""
    async with client.chat([Message("user", text)], sampling=ONE, thin=thin) as chat:
        return (await chat.result()).usage.cached_tokens


async def test_counts_and_explanations_tell_of_ones_own_chats(
    words: Vocabulary, tmp_path: Path
) -> None:
    async with whole_mesh(words, tmp_path) as mesh:
        async with mesh.client() as owner:
            async with owner.chat(
                [Message("user", SECRET)], sampling=ONE, idempotency_key="mine"
            ) as chat:
                accepted = await anext(chat)
                assert isinstance(accepted, Accepted)
                await chat.result()
            for thin in (False, True):
                async with mesh.client() as stranger:
                    assert await cached(stranger, SECRET, thin=thin) == 0
            async with connect(
                "127.0.0.1", mesh.edge_ports.main, ca=mesh.ca, client_secret=owner.secret
            ) as later:
                assert await cached(later, SECRET, thin=True) > len(SECRET) // 2
            found = [
                len((await mesh.router.stub.Explain(asked)).placements)
                for asked in (
                    router_pb2.ExplainRequest(request_id="mine"),
                    router_pb2.ExplainRequest(request_id=accepted.request_id),
                )
            ]
            assert found == [0, 1], "ids that clients choose are not known behind the edge"
