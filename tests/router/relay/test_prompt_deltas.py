"""Opens that leave out what the router knows: put together, asked for, refused, forgotten."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from outrider.codec.prompt_memory import as_bytes, prompt_name, prompt_scope, reply_name
from outrider.codec.tokens import TokenCodec, TokenCoder
from outrider.session.region_wire import put_ids
from outrider.v1 import common_pb2, inference_pb2
from outrider.wire import token_block_from_proto, token_block_to_proto
from services.router.relay.frames import Up
from tests.router.relay.mesh import DIGEST, Mesh, accepted, cancel, done, draft, opening, reasons

CODER = TokenCoder(DIGEST, 1000)
SALT = b"group"
SCOPE = prompt_scope(SALT, DIGEST)


def some(seed: int, num_tokens: int) -> list[int]:
    rng = Random(seed)
    return [rng.randrange(1000) for _ in range(num_tokens)]


PROMPT = some(1, 200)


def delta(
    ids: Sequence[int], num_left_out: int = 0, name: bytes = b"", *, remember: bool = True
) -> inference_pb2.PromptDelta:
    block = token_block_to_proto(CODER.encode(ids[num_left_out:], TokenCodec.VARINT))
    block.checksum = CODER.checksum(ids)
    return inference_pb2.PromptDelta(
        prefix_tokens=num_left_out, prefix_hash=name, tail=block, remember=remember
    )


def asking(
    number: int, prompt: inference_pb2.PromptDelta, salt: bytes = SALT, **fields: Any
) -> inference_pb2.SessionUp:
    return opening(number, ids=prompt, cache_salt=salt, **fields)


def name_of(ids: Sequence[int]) -> bytes:
    return prompt_name(SCOPE, as_bytes(ids))


def ids_of(sent: inference_pb2.SessionUp) -> tuple[int, ...]:
    """Of an open as a replica gets it: whole, with a checksum that holds."""
    prompt = sent.open.ids
    assert not prompt.prefix_tokens and not prompt.prefix_hash
    return CODER.decode(token_block_from_proto(prompt.tail), max_count=1 << 16)


async def run(mesh: Mesh, edge: int, number: int, ids: list[int], reply: list[int]) -> None:
    """A whole session."""
    mesh.send(edge, asking(number, delta(ids)))
    await finish(mesh, edge, number, reply)


async def finish(mesh: Mesh, edge: int, number: int, reply: list[int]) -> Up:
    """The rest of one, whose open is returned as its replica has it."""
    (sent,) = await mesh.at_replica("near")
    mesh.reply("near", accepted(sent.session))
    for at, token in enumerate(reply):
        commit = inference_pb2.Commit(base=at, upto=at + 1)
        put_ids(commit, CODER, [token], TokenCodec.VARINT)
        mesh.reply("near", inference_pb2.SessionDown(session=sent.session, commit=commit))
    ended = inference_pb2.SessionDone(
        upto=len(reply),
        checksum=CODER.checksum(reply),
        finish_reason=common_pb2.FINISH_REASON_STOP,
    )
    mesh.reply("near", inference_pb2.SessionDown(session=sent.session, done=ended))
    told = await mesh.at_edge(edge)
    assert not any(frame.HasField("prompt_unknown") for frame in told)
    return sent


async def test_what_an_earlier_prompt_begins_with_may_be_left_out(mesh: Mesh) -> None:
    edge, other_edge = mesh.edge(), mesh.edge()
    await run(mesh, edge, 1, PROMPT, [5])
    longer = [*PROMPT[:150], *some(2, 20)]
    for number, at in ((2, edge), (3, other_edge)):
        mesh.send(at, asking(number, delta(longer, 150, name_of(PROMPT))))
        assert ids_of(await finish(mesh, at, number, [5])) == tuple(longer)


async def test_prompt_and_reply_together_have_a_name(mesh: Mesh) -> None:
    edge = mesh.edge()
    reply = some(3, 40)
    await run(mesh, edge, 1, PROMPT, reply)
    longer = [*PROMPT, *reply, *some(4, 10)]
    both = reply_name(SCOPE, name_of(PROMPT), len(reply), CODER.checksum(reply))
    mesh.send(edge, asking(2, delta(longer, 240, both)))
    (sent,) = await mesh.at_replica("near")
    assert ids_of(sent) == tuple(longer)
    assert mesh.prompts.num_bytes < 5000


async def test_an_unknown_name_is_asked_for_while_drafts_wait(mesh: Mesh) -> None:
    edge = mesh.edge()
    mesh.send(edge, asking(1, delta(PROMPT, 100, b"?" * 16), echo=7))
    mesh.send(edge, draft(1))
    (asked,) = await mesh.at_edge(edge)
    assert (asked.session, asked.WhichOneof("kind")) == (1, "prompt_unknown")
    assert await mesh.at_replica("near") == []
    mesh.send(edge, inference_pb2.SessionUp(session=1, prompt=delta(PROMPT)))
    sent, drafted = await mesh.at_replica("near")
    assert ids_of(sent) == tuple(PROMPT) and drafted.HasField("draft")
    assert sent.open.echo == 0, "that would measure two round trips"
    mesh.send(edge, cancel(1))
    await mesh.at_replica("near")
    mesh.reply("near", done(sent.session))
    assert mesh.prompts.num_wanted == 0
    # From here on it is known.
    mesh.send(edge, asking(2, delta(PROMPT, 200, name_of(PROMPT))))
    (again,) = await mesh.at_replica("near")
    assert ids_of(again) == tuple(PROMPT)


@pytest.mark.parametrize("case", ["group", "no group", "too long", "checksum", "codec", "garbage"])
async def test_what_does_not_fit_is_asked_for_and_never_guessed(mesh: Mesh, case: str) -> None:
    edge = mesh.edge()
    await run(mesh, edge, 1, PROMPT, [5])
    prompt, salt = delta([*PROMPT, 1, 2], 200, name_of(PROMPT)), SALT
    if case == "group":
        salt = b"theirs"
    elif case == "no group":
        salt = b""
    elif case == "too long":
        prompt.prefix_tokens = 201
    elif case == "checksum":
        prompt.tail.checksum ^= 1
    elif case == "codec":
        prompt.tail.codec = common_pb2.TOKEN_CODEC_RANK_VARINT
    else:
        prompt.tail.payload = b"\xff" * 2
    mesh.send(edge, asking(2, prompt, salt))
    (asked,) = await mesh.at_edge(edge)
    assert asked.HasField("prompt_unknown")
    assert await mesh.at_replica("near") == []


async def test_prompts_are_remembered_only_where_the_edge_says_so(mesh: Mesh) -> None:
    edge = mesh.edge()
    mesh.send(edge, asking(1, delta(PROMPT, remember=False)))
    await finish(mesh, edge, 1, [5])
    damaged = delta(PROMPT)
    damaged.tail.checksum ^= 1
    mesh.send(edge, asking(2, damaged))
    assert mesh.prompts.num_bytes == 0


@pytest.mark.parametrize("case", ["not asked for", "in part", "twice"])
async def test_a_prompt_that_is_out_of_place_ends_its_session(mesh: Mesh, case: str) -> None:
    edge = mesh.edge()
    left_out = 0 if case == "not asked for" else 100
    mesh.send(edge, asking(1, delta(PROMPT, left_out, b"?" * 16 if left_out else b"")))
    if case == "twice":
        mesh.send(edge, inference_pb2.SessionUp(session=1, prompt=delta(PROMPT)))
    await mesh.at_edge(edge)
    part = 50 if case == "in part" else 0
    mesh.send(edge, inference_pb2.SessionUp(session=1, prompt=delta(PROMPT, part)))
    assert reasons(await mesh.at_edge(edge)) == [(1, "MALFORMED_FRAME")]
    assert len(mesh.table) == 0


async def test_an_edge_that_does_not_answer_is_not_waited_for_for_ever(mesh: Mesh) -> None:
    edge = mesh.edge()
    for number in range(1, 4):
        mesh.send(edge, asking(number, delta(PROMPT, 100, b"?" * 16)))
    mesh.send(edge, cancel(3))
    assert mesh.prompts.num_wanted == 2
    await mesh.at_edge(edge)
    mesh.clock.advance(11)
    mesh.switch.expire(mesh.clock())
    assert reasons(await mesh.at_edge(edge)) == [(1, "MALFORMED_FRAME"), (2, "MALFORMED_FRAME")]
    assert mesh.prompts.num_wanted == 0


async def test_a_run_is_of_the_same_chat_whatever_is_left_out_of_its_prompt(mesh: Mesh) -> None:
    edge, other = mesh.edge(), mesh.edge()
    await run(mesh, edge, 1, PROMPT, [5])
    mesh.send(edge, asking(2, delta(PROMPT, 200, name_of(PROMPT)), request_id="r"))
    resume = token_block_to_proto(CODER.encode([5]))
    mesh.send(other, asking(1, delta(PROMPT), request_id="r", resume=resume))
    assert reasons(await mesh.at_edge(edge)) == [(2, "DUPLICATE_SESSION")]
