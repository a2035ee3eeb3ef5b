"""Running chats while long prompts keep arriving. The chats are cut off once all of these have been
answered: none ends before, and makes room for them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from bench.arrivals.requests import RequestFactory
from bench.harness import TOO_FEW, Cell, Run, pooled, quantile
from bench.harness.load import Request, System, Work, WorkResult
from bench.peers.lineup import rotated

CHATS = 8
CHAT_TOKENS = 1000
"""More than come before they are cut off."""
DOCUMENT_TOKENS = 8
ARRIVALS_S = (1.0, 3.0, 5.0)
"""When the documents come: each takes well over a second to read on one core."""
LEAST_S = 10.0
"""Of a run, with documents or without."""


@dataclass(slots=True)
class Gaps:
    """Milliseconds between arrivals of a chat's text, one list per round."""

    alone: list[list[float]] = field(default_factory=list)
    disturbed: list[list[float]] = field(default_factory=list)
    document_ttft_ms: list[float] = field(default_factory=list)

    def ratio(self) -> float:
        """p99 with the documents over p99 without, over all rounds together."""
        disturbed, alone = (pooled(part) for part in (self.disturbed, self.alone))
        return quantile(disturbed, 0.99) / quantile(alone, 0.99)


async def measure(
    systems: Mapping[str, System], factory: RequestFactory, rounds: int
) -> dict[str, Gaps]:
    """Without and with documents, one after the other, by system."""
    gaps = {name: Gaps() for name in systems}
    for turn in range(rounds):
        alone, disturbed = (factory.chats([0.0] * CHATS, CHAT_TOKENS) for _ in range(2))
        documents = factory.documents(ARRIVALS_S, DOCUMENT_TOKENS)
        for name in rotated(systems, turn):
            done = await systems[name].run(_work(alone))
            gaps[name].alone.append(chat_gaps(done, num_documents=0))
            done = await systems[name].run(_work((*disturbed, *documents)))
            gaps[name].disturbed.append(chat_gaps(done, num_documents=len(documents)))
            gaps[name].document_ttft_ms += [a.ttft_ms for a in done.answers[CHATS:]]
        print(f"round {turn + 1} of {rounds}: long prompts", file=sys.stderr)
    return gaps


def _work(requests: tuple[Request, ...]) -> Work:
    """Chats, and the documents that come meanwhile."""
    return Work(requests, ignore_eos=True, num_background=CHATS, least_s=LEAST_S)


def chat_gaps(done: WorkResult, num_documents: int) -> list[float]:
    """Gaps of the chats from the first document's arrival to the last one's first token; without
    documents from the same moment to the end."""
    count = len(done.answers) - num_documents
    chats, documents = done.answers[:count], done.answers[count:]
    end_s = max((d.token_s[0] for d in documents), default=float("inf"))
    return [gap for chat in chats for gap in chat.gaps_ms(ARRIVALS_S[0], end_s)]


def report(run: Run, gaps: Mapping[str, Gaps]) -> None:
    title = (
        f"Inter-token latency of {CHATS} running chats, ms: with and without prompts of about "
        "1,500 tokens that arrive meanwhile"
    )
    without = ("n without", "p50 without", "p99 without")
    with_ = ("n with", "p50 with", "p99 with", "p99 ratio")
    table = run.table(title, "system", *without, *with_, "n, long prompts", "TTFT of long prompts")
    for name, of in gaps.items():
        alone, disturbed = (pooled(part) for part in (of.alone, of.disturbed))
        cells: list[Cell] = []
        for part, sample in (("without", alone), ("with", disturbed)):
            cells += [len(sample), table.median(sample), table.quantile(sample, 0.99)]
            run.samples(f"ITL {part} documents, {name}", sample, unit="ms")
        ratio = of.ratio() if TOO_FEW not in cells else TOO_FEW
        ttft_ms = of.document_ttft_ms
        table.add(name, *cells, ratio, len(ttft_ms), table.median(ttft_ms))
        run.samples(f"document TTFT, {name}", ttft_ms, unit="ms")
