"""What text drafted for display alone costs an edge and brings a reader.

Two parts. Chats in virtual time through the edge's own session, with and without the judgement of
services/edge/session/display_worth.py: the region commits a token every 40 ms and takes no drafts.
A good drafter is right nine times in ten; a poor one is right one time in twenty; a random one, of
a model that shares the vocabulary and nothing else, is never right. All three claim 0.9. Each
drafts for its own trust group, chat after chat.

Then real chats through a mesh whose edge sends no drafts, one at a time: each prompt is asked with
provisional text and without. The drafter computes for the first alone; its processor time is the
price of what is shown. Region and edge have a core each.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from bench.harness import Run, parser, start
from bench.harness.prompts import Prompt, interleaved, load_prompts
from bench.peers.lineup import rotated
from bench.wan.measure import connected, cpu_s, own_cpu_s
from bench.wan.plan import NO_UPLOAD, Scheme
from bench.wan.samples import Sample, ask
from bench.wan.testbed import RegionEngine, Testbed, running_testbed
from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.chat import Message
from outrider.models.detokenizer import Detokenizer
from outrider.sampling.params import SamplingParams
from outrider.sampling.reply import ReplyText
from outrider.session.region import Commit, Pace
from outrider.session.types import FinishReason
from services.edge.session.acceptance import GroupAverages
from services.edge.session.display_worth import DisplayWorth, WorthPolicy
from services.edge.session.draft_sources import Guess, Wanted, always
from services.edge.session.events import (
    ChatAsked,
    ChatRequest,
    PromptReady,
    RegionDone,
    RegionOpened,
    Tick,
)
from services.edge.session.machine import ChatSession, SessionPolicy
from services.edge.session.reply import ReplyFlow, ReplyPolicy, ReplyTools
from services.edge.session.upload_control import UploadPolicy, Uploads

_WORDS: Final = [b"", *(f" w{number}".encode() for number in range(200))]
_DIGEST: Final = bytes(32)
_PROMPT: Final = (1, 2, 3)
_NUM_TOKENS: Final = 120
_INTERVAL_S: Final = 0.04
_RTT_S: Final = 0.1
_ACCURACY: Final = {"good": 0.9, "poor": 0.05, "random": 0.0}
_NEVER_ENDS: Final = WorthPolicy(leave_ms=-1.0, leave_share=-1.0)


class _Drafter:
    """Right about a token with this probability, and sure of all of them."""

    def __init__(self, reply: Sequence[int], accuracy: float, rng: Random) -> None:
        self._guesses = [token if rng.random() < accuracy else token % 200 + 1 for token in reply]
        self._num_final = -len(_PROMPT)

    def extend(self, ids: Sequence[int]) -> None:
        """Learn ids that are final."""
        self._num_final += len(ids)

    def draft_after(
        self, tentative_ids: Sequence[int], max_tokens: int, wanted: Wanted = always
    ) -> Guess:
        """See Drafter.draft_after."""
        at = self._num_final + len(tentative_ids)
        ids = tuple(self._guesses[at : at + max_tokens])
        survival = tuple(0.9 ** (index + 1) for index in range(len(ids)))
        return Guess(ids, survival, ("model",) * len(ids))


@dataclass(slots=True)
class Sums:
    """Of all chats of one run."""

    tokens: int = 0
    drafts: int = 0
    stayed: int = 0
    erased: int = 0
    sooner_s: float = 0.0
    cpu_s: float = 0.0
    drafted_chats: int = 0

    def row(self) -> dict[str, float]:
        """Per final token where it makes sense."""
        shown = self.stayed + self.erased
        return {
            "drafted_chats": self.drafted_chats,
            "drafts_per_token": round(self.drafts / self.tokens, 3),
            "shown_share": round(self.stayed / self.tokens, 3),
            "stayed_share": round(self.stayed / shown, 3) if shown else 0.0,
            "sooner_ms": round(self.sooner_s * 1000 / self.tokens, 2),
            "cpu_us_per_token": round(self.cpu_s * 1e6 / self.tokens, 1),
        }


def _chat(averages: GroupAverages, accuracy: float, rng: Random) -> tuple[ReplyFlow, float]:
    """One chat; returns its reply, and the processor's seconds of the session."""
    reply = [rng.randrange(1, 201) for _ in range(_NUM_TOKENS)]
    tools = ReplyTools(
        new_reply=lambda params: ReplyText(params, {0}, Detokenizer(_WORDS)),
        new_drafter=lambda needs: _Drafter(reply, accuracy, rng),
        token_bytes=_WORDS.__getitem__,
        stop_ids=frozenset({0}),
        averages=averages.of,
    )
    policy = SessionPolicy(
        _DIGEST, 2048, reply=ReplyPolicy(upload=UploadPolicy(uploads=Uploads.NEVER))
    )
    asked = ChatRequest(
        *("r", "m", (Message("user", "hello"),), SamplingParams(max_tokens=1000)),
        provisional=True,
        group=b"one",
    )
    begun = time.process_time()
    session, now = ChatSession(policy, tools, 0.0), _RTT_S
    session.handle(ChatAsked(asked), 0.0)
    session.handle(PromptReady(_PROMPT), 0.0)
    session.handle(RegionOpened(3, 0, "replica", "far", _DIGEST, echo=1), now)
    for base, token in enumerate((*reply, 0)):
        while (at := session.next_deadline()) is not None and at < now + _INTERVAL_S:
            session.handle(Tick(), at)
        now += _INTERVAL_S
        session.handle(Commit(0, base, 0, (token,), pace=Pace(_INTERVAL_S, 0.001, 64)), now)
    session.handle(RegionDone(FinishReason.STOP, _NUM_TOKENS + 1), now)
    took_s = time.process_time() - begun
    assert session.reply is not None and session.done is not None
    return session.reply, took_s


def chats_of(drafter: str, num_chats: int, *, judged: bool) -> Sums:
    """So many chats of one group; `judged`: drafting may end."""
    averages, rng, sums = GroupAverages(), Random(7), Sums()
    if not judged:
        averages.of(b"one").display_worth = DisplayWorth(_NEVER_ENDS)
    for _ in range(num_chats):
        reply, cpu_s = _chat(averages, _ACCURACY[drafter], rng)
        stats = reply.stats()
        sums.tokens += _NUM_TOKENS
        sums.drafts += stats.drafted_tokens
        sums.stayed += stats.shown_tokens
        sums.erased += stats.erased_tokens
        sums.sooner_s += reply.display.sooner_s
        sums.cpu_s += cpu_s
        sums.drafted_chats += stats.drafted_tokens > 0
    return sums


SHOWN: Final = replace(NO_UPLOAD, name="shown")
NOT_SHOWN: Final = replace(NO_UPLOAD, name="not asked for", provisional=False)
RTTS_MS: Final = (0, 150)
MAX_TOKENS: Final = 96


@dataclass(frozen=True, slots=True)
class Chat:
    """A real one."""

    sample: Sample
    drafter_s: float
    """Processor time of the drafter's process."""
    edge_s: float
    """That of the edge's own."""


async def measure(prompts: Sequence[Prompt]) -> dict[tuple[int, Scheme], list[Chat]]:
    """Real chats by RTT to the region and by whether text is shown; the two take turns."""
    found: dict[tuple[int, Scheme], list[Chat]] = {}
    async with running_testbed(RegionEngine(), (SHOWN,)) as bed:
        for rtt_ms in RTTS_MS:
            await bed.set_distance((SHOWN,), rtt_ms)
            async with connected(bed, (SHOWN,)) as clients:
                client = clients[SHOWN.gateway]
                await ask(client, SHOWN, prompts[0], 0.0, 0, MAX_TOKENS)
                for turn, prompt in enumerate(prompts):
                    for scheme in rotated((SHOWN, NOT_SHOWN), turn):
                        all_s, edge_s = _spent(bed)
                        sample = await ask(client, scheme, prompt, 0.0, turn, MAX_TOKENS)
                        after_s, edge_after_s = _spent(bed)
                        edge_s = edge_after_s - edge_s
                        chat = Chat(sample, after_s - all_s - edge_s, edge_s)
                        found.setdefault((rtt_ms, scheme), []).append(chat)
            print(f"RTT {rtt_ms} ms", file=sys.stderr)
    return found


def _spent(bed: Testbed) -> tuple[float, float]:
    """Processor time so far of the edge and its drafter, and of the edge alone."""
    pid = bed.edges[SHOWN.gateway].pid
    return cpu_s(pid), own_cpu_s(pid)


def report_virtual(run: Run, num_chats: int) -> None:
    """The table of the chats in virtual time."""
    table = run.table(
        f"Chats in virtual time, {num_chats} of {_NUM_TOKENS} tokens at an RTT of 100 ms",
        *("drafter", "drafting", "chats drafted for", "drafts per token"),
        "tokens shown before they were final",
        "of shown ones stayed",
        "sooner, per final token, ms",
        "session's CPU per final token, us",
    )
    table.note("Judged: drafting ends where it brings nothing. The drafter itself costs nothing.")
    for drafter in _ACCURACY:
        for judged in (False, True):
            row = chats_of(drafter, num_chats, judged=judged).row()
            table.add(drafter, "judged" if judged else "without end", *row.values())


def report_real(run: Run, found: dict[tuple[int, Scheme], list[Chat]]) -> None:
    """The table of the real chats."""
    table = run.table(
        "Real chats whose drafts are for display alone: processor time of the edge",
        *("RTT to the region, ms", "provisional text", "chats", "final tokens"),
        "drafter's CPU per final token, ms",
        "edge's CPU per final token, ms",
        "characters shown before they were final, %",
        "first final token, over not asked for",
        "whole reply, over not asked for",
    )
    for (rtt_ms, scheme), chats in found.items():
        without = found[rtt_ms, NOT_SHOWN]
        num_tokens = sum(len(it.sample.ids) for it in chats)
        num_chars = sum(it.sample.num_chars for it in chats)
        early = sum(it.sample.early_chars for it in chats)
        pairs = list(zip(chats, without, strict=True))
        is_base = scheme is NOT_SHOWN
        first = [a.sample.committed_ms / b.sample.committed_ms for a, b in pairs]
        whole = [a.sample.whole_ms / b.sample.whole_ms for a, b in pairs]
        table.add(
            *(rtt_ms, scheme.name, len(chats), num_tokens),
            1e3 * sum(it.drafter_s for it in chats) / num_tokens,
            1e3 * sum(it.edge_s for it in chats) / num_tokens,
            100 * early / num_chars,
            1.0 if is_base else table.mean_ratio(first),
            1.0 if is_base else table.mean_ratio(whole),
        )


def main() -> int:
    run = start("display", parser("display", __doc__ or "").parse_args())
    prompts = interleaved(load_prompts(split="test"))[: 2 if run.quick else 12]
    run.setting(
        "outrider", model=DEFAULT_MODEL.name, max_tokens=MAX_TOKENS, prompts=[p.id for p in prompts]
    )
    report_virtual(run, 10 if run.quick else 60)
    report_real(run, asyncio.run(measure(prompts)))
    run.finish()
    return 0


if __name__ == "__main__":
    sys.exit(main())
