"""Limits of `/v1/embeddings` at an edge's door, with a region that makes small vectors."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx2
import pytest

from outrider.models.definitions import ModelSpec
from outrider.models.vocabulary import Vocabulary
from services.edge.access.identity import TenantConfig
from services.edge.http.openai_embeddings import MAX_INPUTS
from services.edge.limits.listener import ListenerLimits
from tests.api_keys import text_of
from tests.edge.integration.http_client import plain, serving_http
from tests.edge.integration.running import Running

PATH = "/v1/embeddings"
SPECS = [ModelSpec(name, "dir:/nowhere", embeds=True) for name in ("e", "f")]


def embedding(mesh: Running) -> Running:
    """The mesh, of which the edge knows two models that embed."""
    mesh.edge.models.embedders.set(SPECS)
    return mesh


def body(*texts: str, **more: Any) -> dict[str, Any]:
    return {"model": "e", "input": list(texts), **more}


async def test_input_tokens_of_a_tenant_run_out(words: Vocabulary, tmp_path: Path) -> None:
    """They are taken when they are known: what follows is refused, and of nobody else's."""
    tenants = (TenantConfig("acme", input_tokens_per_minute=20), TenantConfig("bolt"))
    async with serving_http(words, tmp_path, tenants=tenants) as made:
        mesh = embedding(made)
        async with plain(mesh) as acme, plain(mesh, text_of("bolt")) as bolt:
            first = await acme.post(PATH, json=body("a", "b", "c", "d", "e"))
            told = first.json()
            assert [row["embedding"] for row in told["data"]] == [[float(n)] for n in range(5)]
            assert told["usage"] == {"prompt_tokens": 25, "total_tokens": 25}
            assert told["system_fingerprint"] == "fp_31323334"
            refused = await acme.post(PATH, json=body("f"))
            assert refused.status_code == 429
            assert "input tokens" in refused.json()["error"]["message"]
            assert float(refused.headers["retry-after"]) > 0
            assert mesh.region.embeddings.num_taken == 5
            assert (await bolt.post(PATH, json=body("g"))).status_code == 200


async def test_what_is_asked_of_one_request_is_bounded(words: Vocabulary, tmp_path: Path) -> None:
    async with serving_http(words, tmp_path) as made:
        mesh = embedding(made)
        async with plain(mesh) as client:
            for inputs in ([], ["a"] * (MAX_INPUTS + 1)):
                refused = await client.post(PATH, json=body(*inputs))
                assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input")
            assert not mesh.region.embeddings.num_taken
            most = await client.post(PATH, json=body(*["a"] * MAX_INPUTS))
            assert len(most.json()["data"]) == MAX_INPUTS


@pytest.mark.parametrize("limit", ["models", "requests_per_minute"])
async def test_other_limits_of_tenants_hold(words: Vocabulary, tmp_path: Path, limit: str) -> None:
    allowed: dict[str, Any] = {"models": ("small", "f"), "requests_per_minute": 1}
    tenants = (TenantConfig("acme", **{limit: allowed[limit]}), TenantConfig("bolt"))
    async with serving_http(words, tmp_path, tenants=tenants) as made:
        async with plain(embedding(made)) as client:
            answers = [
                (await client.post(PATH, json=body("a", model=model))).status_code
                for model in ("f", "e")
            ]
    assert answers == [200, 404 if limit == "models" else 429]


@pytest.mark.parametrize("is_http2", [False, True])
async def test_far_more_requests_than_may_be_under_way_are_all_answered(
    words: Vocabulary, tmp_path: Path, is_http2: bool
) -> None:
    """By the limits that an edge has by itself: a client's requests and connections beyond them
    wait, as chats beyond theirs do not."""
    limits = ListenerLimits()
    async with serving_http(words, tmp_path) as made:
        mesh = embedding(made)
        most = 5 * limits.max_chats_per_address
        pool = httpx2.Limits(max_connections=2 * limits.max_connections_per_address)
        async with plain(mesh, limits=pool, http1=not is_http2, http2=is_http2) as client:
            client.timeout = httpx2.Timeout(120)
            answers = await asyncio.gather(
                *(client.post(PATH, json=body(f"text {number}")) for number in range(most))
            )
    assert {answer.status_code for answer in answers} == {200}
    assert mesh.region.embeddings.num_taken == most
