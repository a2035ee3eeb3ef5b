"""What a client's own drafts bring over the verify RPC, by its distance to the mesh.

A client sends drafts to an edge beside a region with the default model (docs/guides/verify.md),
over a relay that delays both ways. Three drafters take turns at every prompt: one that drafts
nothing, the lookup of `examples/verify_ngrams.py`, and `GreedyDrafter` of
`examples/verify_model.py` over the shipped draft model, in the client's process. Every chat is a
trust group of its own: the region has learnt nothing from the others. Where the client has no
draft, it drafts from repetitions in the text and from its shipped statistics. Greedy; every reply
has to be that of the reference. The region, and the relay with the client, have cores of their own
if there are two.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final

import numpy as np

from bench.harness import Run, parser, start
from bench.harness.mesh import HOST, Mesh, Service, mesh, replica_rows
from bench.harness.prompts import Prompt, interleaved, load_prompts
from bench.harness.provenance import ROOT
from bench.peers.lineup import rotated
from bench.relay.lane import Conditions
from bench.wan.testbed import split_cores
from outrider.engines.base import Engine, Ids, SequenceSlice
from outrider.engines.config import EngineConfig
from outrider.engines.draft_loading import SHIPPED, load_draft
from outrider.engines.factory import create_engine
from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.chat import Message
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import Vocabulary, load_vocabulary
from outrider.sampling.params import SamplingParams
from outrider.sampling.reply import ReplyText
from outrider.speculation.verification import common_prefix_length
from outrider.telemetry.logs import configure_logging
from outrider.testing import free_tcp_port
from outrider.verify_client import Drafter, VerifiedReply, VerifyClient
from services.inference.reference import generate
from tests.api_keys import key_of, text_of, write_keys

RTTS_MS: Final = (0, 50, 150)
NOTHING: Final = "none"
MAX_TOKENS: Final = 96
_LINK: Final = "client"
_TENANT: Final = "drafter"
_SEQUENCE: Final = 1
_MAX_DRAFTS: Final = 24
"""Most drafts ahead: what a region of 50 ms a call commits in a round trip of 150 ms, and some."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    num_prompts: int
    rtts_ms: tuple[int, ...]


FULL: Final = Size(5, RTTS_MS)
QUICK: Final = Size(2, (0, 150))


class EngineModel:
    """The draft model as `GreedyDrafter` calls one: ids in, logits of the last place out. It
    computes only what was not computed for the call before."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._ids: list[int] = []
        """Those whose KV the blocks hold."""
        num_blocks = engine.info.num_blocks
        self._blocks: Ids = np.arange(num_blocks, dtype=np.int32)

    def __call__(self, ids: list[int]) -> SimpleNamespace:
        if not self._ids:
            self._engine.open(_SEQUENCE, np.array(ids[:1], np.int32))
        past = min(common_prefix_length(self._ids, ids), len(ids) - self._engine.info.min_rows)
        past = max(past, 0)
        tokens = np.array(ids[past:], np.int32)
        (rows,) = self._engine.step([SequenceSlice(_SEQUENCE, tokens, past, self._blocks, 1)])
        self._ids = list(ids)
        scores = np.full(self._engine.info.vocabulary_size, -np.inf, np.float32)
        if rows.ids is None:
            scores[: rows.logits.shape[1]] = rows.logits[0]
        else:
            scores[rows.ids[0]] = rows.logits[0]
        return SimpleNamespace(logits=[scores[None]])

    def close(self) -> None:
        """Of the engine, too."""
        if self._ids:
            self._engine.close_sequence(_SEQUENCE)
        self._engine.close()


class Counting:
    """A drafter, and how much it drafted."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self.num_drafts = 0

    def draft(self, ids: Sequence[int], max_tokens: int) -> Sequence[int]:
        """See outrider.verify_client.Drafter."""
        drafts = self._drafter.draft(ids, max_tokens)
        self.num_drafts += len(drafts)
        return drafts


class Nothing:
    """Drafts nothing."""

    def draft(self, ids: Sequence[int], max_tokens: int) -> Sequence[int]:
        """See outrider.verify_client.Drafter."""
        return []


@dataclass(frozen=True, slots=True)
class Chat:
    """One reply."""

    reply: VerifiedReply
    num_drafts: int
    num_first: int
    """Tokens of the first message."""
    seconds: float
    """From the opening to the last token."""
    streaming_s: float
    """From the first tokens to the last."""
    is_right: bool
    """Whether it is the reference's."""


def main() -> int:
    arguments = parser("verify", __doc__ or "").parse_args()
    run = start("verify", arguments)
    configure_logging("bench", "error")
    size = QUICK if run.quick else FULL
    vocabulary = load_vocabulary(DEFAULT_MODEL, ModelStore(default_root()))
    prompts = interleaved(load_prompts(split="test"))[: size.num_prompts]
    run.setting("outrider", prompts=[it.id for it in prompts], max_tokens=MAX_TOKENS)
    expected = references(vocabulary, prompts)
    with contextlib.closing(draft_model()) as model:
        makers: dict[str, Callable[[], Drafter]] = {
            NOTHING: Nothing,
            "prompt lookup": _example("verify_ngrams").PromptLookup,
            "draft model": lambda: _example("verify_model").GreedyDrafter(model, list),
        }
        chats = asyncio.run(measure(size, prompts, expected, makers))
    num_wrong = report(run, chats)
    run.finish()
    return int(num_wrong > 0)


def _example(name: str) -> Any:
    """A module of examples/."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def draft_model() -> EngineModel:
    """The one that edges draft with by default."""
    config = EngineConfig(num_blocks=32, prepare_first=True, pin_threads=False)
    draft = load_draft(SHIPPED, DEFAULT_MODEL, ModelStore(default_root()), config)
    return EngineModel(draft.engine)


def references(vocabulary: Vocabulary, prompts: Sequence[Prompt]) -> list[tuple[int, ...]]:
    """The ids of each reply by the engine alone; blocks."""

    def new_reply(params: SamplingParams) -> ReplyText:
        return ReplyText(params, vocabulary.stop_ids, vocabulary.detokenizer())

    sampling = SamplingParams(max_tokens=MAX_TOKENS)
    with contextlib.closing(create_engine(EngineConfig(max_fixed_rows=1))) as engine:
        return [
            generate(
                engine, vocabulary.encode_chat([Message("user", it.text)]), sampling, new_reply
            ).ids
            for it in prompts
        ]


async def measure(
    size: Size,
    prompts: Sequence[Prompt],
    expected: Sequence[tuple[int, ...]],
    makers: dict[str, Callable[[], Drafter]],
) -> dict[tuple[int, str], list[Chat]]:
    """The chats by RTT and drafter; drafters take turns at each prompt."""
    region_cores, client_cores = split_cores()
    os.sched_setaffinity(0, client_cores)
    found: dict[tuple[int, str], list[Chat]] = {}
    async with mesh("verify", relay_cores=client_cores) as made:
        edge = await _start(made, region_cores)
        relay = await made.relay()
        port = await relay.add(_LINK, "tcp", (HOST, edge.ports.http))
        async with _client(port) as client:
            await ask(client, Nothing(), Prompt("warm-up", "", "Say a word about rain."), ())
            for rtt_ms in size.rtts_ms:
                await relay.set(_LINK, Conditions(delay_ms=rtt_ms / 2))
                for turn, (prompt, ids) in enumerate(zip(prompts, expected, strict=True)):
                    for name in rotated(tuple(makers), turn):
                        chat = await ask(client, makers[name](), prompt, ids)
                        found.setdefault((rtt_ms, name), []).append(chat)
                print(f"RTT {rtt_ms} ms", file=sys.stderr)
    return found


async def _start(made: Mesh, cores: frozenset[int]) -> Service:
    """A region of one replica, and an edge beside it that drafts nothing itself."""
    write_keys(made.folder / "keys.json", key_of(_TENANT))
    replica = made.service(
        *("replica", "inference", {"replica": "replica", "threads": 1, "prepare_first": True}),
        region="region",
        cores=cores,
    )
    rows = {"replicas": replica_rows([replica])}
    router = made.service("router", "router", rows, region="region", cores=cores)
    values = {
        "name": "edge",
        "routers": (router.address,),
        "state_dir": str(made.folder),
        "drafter.model": "none",
        "http": {"port": free_tcp_port()},
        "tenants": ({"name": _TENANT, "trust": "chat"},),
    }
    edge = made.service("edge", "edge", values, region="region", cores=cores)
    for service in (replica, router, edge):
        await made.start(service)
    return edge


@contextlib.asynccontextmanager
async def _client(port: int) -> AsyncIterator[VerifyClient]:
    async with VerifyClient([f"{HOST}:{port}"], key=text_of(_TENANT), insecure=True) as client:
        yield client


async def ask(
    client: VerifyClient, drafter: Drafter, prompt: Prompt, expected: tuple[int, ...]
) -> Chat:
    """One chat."""
    counting = Counting(drafter)
    messages, sampling = [Message("user", prompt.text)], SamplingParams(max_tokens=MAX_TOKENS)
    session = client.verify(messages, counting, sampling=sampling, max_drafts=_MAX_DRAFTS)
    began = first = last = time.monotonic()
    num_first = 0
    async for tokens in session:
        last = time.monotonic()
        if not tokens.base:
            first, num_first = last, len(tokens.ids)
    return Chat(
        *(session.reply, counting.num_drafts, num_first, last - began, last - first),
        is_right=session.reply.ids == expected,
    )


def report(run: Run, found: dict[tuple[int, str], list[Chat]]) -> int:
    """One row for each distance and drafter; how many replies were not the reference's."""
    table = run.table(
        "Replies over the verify RPC by the client's distance and drafter: greedy, one at a time",
        "RTT to the edge, ms",
        "client's drafter",
        "n",
        "tokens a message",
        "tokens a round trip",
        "whole reply, over that without drafts",
        "drafts that the model accepted, %",
        "tokens that were client's drafts, %",
        "equal replies",
    )
    table.note(
        "A round trip's tokens are those that came in its time, behind the first message: nothing "
        "waits for an answer. Accepted: drafts of the client that a call of the model verified and "
        "kept, of all that it made, and of all tokens. Ratios: geometric mean over the prompts, "
        "and its 95 % interval."
    )
    num_wrong = 0
    for (rtt_ms, name), chats in found.items():
        num_tokens = sum(len(it.reply.ids) for it in chats)
        num_messages = sum(it.reply.num_commits for it in chats)
        num_kept = sum(it.reply.usage.accepted_edge_tokens for it in chats)
        num_drafts = sum(it.num_drafts for it in chats)
        seconds = [it.seconds for it in chats]
        right = sum(it.is_right for it in chats)
        num_wrong += len(chats) - right
        run.samples(f"{rtt_ms} ms, {name}, whole reply", [it * 1e3 for it in seconds], unit="ms")
        without = (it.seconds for it in found[rtt_ms, NOTHING])
        ratios = [a / b for a, b in zip(seconds, without, strict=True)]
        table.add(
            rtt_ms,
            name,
            len(chats),
            num_tokens / num_messages,
            _per_round_trip(chats, rtt_ms),
            1.0 if name == NOTHING else table.mean_ratio(ratios),
            100 * num_kept / num_drafts if num_drafts else 0.0,
            100 * num_kept / num_tokens,
            f"{right} of {len(chats)}",
        )
    run.figures["wrong"] = num_wrong
    return num_wrong


def _per_round_trip(chats: Sequence[Chat], rtt_ms: int) -> float | str:
    """Tokens behind the first message, over the round trips that they took."""
    if not rtt_ms:
        return "\N{EN DASH}"
    num_later = sum(len(it.reply.ids) - it.num_first for it in chats)
    return num_later / (sum(it.streaming_s for it in chats) / (rtt_ms / 1e3))


if __name__ == "__main__":
    sys.exit(main())
