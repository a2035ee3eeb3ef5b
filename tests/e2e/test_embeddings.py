"""Vectors from a mesh of real processes with the real model, by OpenAI's own client: while
a replica is killed, and beside a model that chats."""

from __future__ import annotations

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import openai
import pytest

from bench.harness.local_mesh import LocalMesh, outrider
from outrider.cli.local import development_key
from outrider.cli.local.state import running_mesh
from tests.e2e.conftest import EMBEDDING_MODEL as MODEL

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(300)]

FILMS = ["The new movie is awesome", "The new movie is so great"]
FEW_TEXTS = [f"sentence {number} of {'many ' * (number % 5)}short ones" for number in range(48)]


@pytest.fixture(scope="module")
def client(mesh: LocalMesh) -> openai.OpenAI:
    """Of the shared mesh, which has a replica of the model in each region."""
    port = mesh.state.service("edge")["http_port"]
    key = development_key.read(mesh.state_dir)
    return openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=key, max_retries=0)


def vectors_of(client: openai.OpenAI, texts: list[str]) -> list[bytes]:
    answer = client.embeddings.create(model=MODEL, input=texts)
    assert [it.index for it in answer.data] == list(range(len(texts)))
    return [np.array(it.embedding, np.float32).tobytes() for it in answer.data]


def test_what_openai_clients_ask_for(client: openai.OpenAI, mesh: LocalMesh) -> None:
    """The client asks for base64 unless told otherwise. 0.8939 is what the model's authors publish
    of these two sentences."""
    packed = client.embeddings.create(model=MODEL, input=FILMS)
    plain = client.embeddings.create(model=MODEL, input=FILMS, encoding_format="float")
    first, second = (np.array(it.embedding, np.float32) for it in packed.data)
    assert first @ second == pytest.approx(0.8939, abs=1e-4)
    assert np.array(plain.data[0].embedding, np.float32).tobytes() == first.tobytes()
    assert packed.usage.prompt_tokens == packed.usage.total_tokens == 15
    short = client.embeddings.create(model=MODEL, input=FILMS[0], dimensions=8)
    assert len(short.data[0].embedding) == 8
    ids = client.embeddings.create(model=MODEL, input=[[101, 1996, 102], [101, 102]])
    assert len(ids.data) == 2
    assert MODEL in [it.id for it in client.models.list().data]
    told = outrider("embed", FILMS[0], "--json", "--state-dir", str(mesh.state_dir)).stdout
    assert np.array(json.loads(told)["embedding"], np.float32).tobytes() == first.tobytes()


def test_what_cannot_be_embedded_is_refused_by_name(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match=r"input\[1\].*length is 256 tokens") as long:
        client.embeddings.create(model=MODEL, input=["short", "word " * 300])
    assert (long.value.code, long.value.param) == ("context_length_exceeded", "input")
    cut = client.embeddings.create(
        model=MODEL, input="word " * 300, extra_body={"truncate_prompt_tokens": -1}
    )
    assert cut.usage.prompt_tokens == 256
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="smollm2-135m-instruct", input="of a chat model")
    with pytest.raises(openai.BadRequestError, match="384 dimensions"):
        client.embeddings.create(model=MODEL, input="a", dimensions=1000)
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="or_nobody").embeddings.create(model=MODEL, input="a")


def test_a_killed_replica_costs_no_vector(client: openai.OpenAI, mesh: LocalMesh) -> None:
    """Requests that are under way at its death end well, with the same bytes as before."""
    before = vectors_of(client, FEW_TEXTS)
    state = running_mesh(mesh.state_dir)
    assert state is not None
    victim = next(row for row in state.services if row.get("model") == MODEL)
    with ThreadPoolExecutor(8) as pool:
        asking = [pool.submit(vectors_of, client, FEW_TEXTS) for _ in range(12)]
        os.kill(victim["pid"], signal.SIGKILL)
        asking += [pool.submit(vectors_of, client, FEW_TEXTS) for _ in range(4)]
        for each in asking:
            assert each.result() == before
