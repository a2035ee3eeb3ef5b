"""What drafting for display costs an edge and brings a reader, where the drafter is good and where
it is poor: chats in virtual time through the edge's own session, with and without the judgement of
services/edge/session/display_worth.py.

    python -m bench.display [--chats 60]

The region commits a token every 40 ms and takes no drafts. A good drafter is right nine times in
ten and says so; a poor one is right one time in twenty; a random one, of a model that shares the
vocabulary and nothing else, is never right. All three claim 0.9. Each drafts for its own trust
group, chat after chat. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

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


def run(drafter: str, num_chats: int, *, judged: bool) -> Sums:
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


def main() -> int:
    """Print a table and one line of JSON."""
    arguments = argparse.ArgumentParser(prog="python -m bench.display", description=__doc__)
    arguments.add_argument("--chats", type=int, default=60, help="of each run")
    num_chats = arguments.parse_args().chats
    found = {
        f"{drafter}, {'judged' if judged else 'always'}": run(
            drafter, num_chats, judged=judged
        ).row()
        for drafter in _ACCURACY
        for judged in (False, True)
    }
    for name, row in found.items():
        print(name.ljust(16), "  ".join(f"{key} {value}" for key, value in row.items()))
    print(json.dumps({"chats": num_chats, "tokens_per_chat": _NUM_TOKENS, "runs": found}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
