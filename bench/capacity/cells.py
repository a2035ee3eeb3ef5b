"""One cell: so many chats at once, by one scheme, at one distance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from bench.capacity.edge import EdgeChat
from bench.capacity.pairs import CallCost, Pair
from bench.capacity.region import CallRecord, Region
from bench.capacity.virtual_time import VirtualTime
from outrider.engines.fake import FakeEngine, FakeOptions
from outrider.models.detokenizer import Detokenizer
from outrider.sampling.params import SamplingParams
from outrider.sampling.reply import ReplyText
from services.edge.session.acceptance import GroupAverages
from services.edge.session.upload_control import UploadPolicy, Uploads
from services.inference.reference import generate
from services.inference.scheduler.limits import SchedulerLimits
from services.inference.scheduler.types import Finished, OpenRequest, SessionCommit

NUM_TOKENS: Final = 192
"""Of each reply."""
WARM_TOKENS: Final = 64
"""Tokens of every chat before anything counts: prompts, and what is learnt at the beginning."""
VOCABULARY: Final = 512
_NUM_PROMPT: Final = 16
_WORDS: Final = [b"", *(f" w{number}".encode() for number in range(1, VOCABULARY))]
_SAMPLING: Final = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True)


@dataclass(frozen=True, slots=True)
class Scheme:
    """Who drafts."""

    name: str
    region_drafts: int = 0
    """Most drafts that a draft model in the region makes for a chat before each call."""
    uploads: Uploads = Uploads.NEVER
    """Whether edges' drafts go up. Without them a chat comes from beside the region: what is
    counted there is the region's core, whose pace no distance changes."""


PLAIN: Final = Scheme("plain")
EDGE: Final = Scheme("edge", uploads=Uploads.ALWAYS)
OUTRIDER: Final = Scheme("outrider", uploads=Uploads.AUTO)


def region_scheme(num_drafts: int) -> Scheme:
    """The region drafts, at most so many."""
    return Scheme(f"region, {num_drafts}", region_drafts=num_drafts)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a cell's steady part had, and whether all of its replies were right."""

    pace: float
    """Tokens per second of each chat."""
    verify_ms: float
    """Of a call, on average."""
    draft_ms: float
    """Of the draft model's steps in the region before a call, on average."""
    tokens_per_commit: float
    drafts_per_chat: float
    """Rows for drafts, for each chat and call."""
    uploads_share: float
    """Commits whose edges sent drafts."""
    is_exact: bool


def run_cell(
    pair: Pair, scheme: Scheme, num_chats: int, rtt_s: float, least_chats: int = 8
) -> Outcome:
    """Rounds of so many chats each, until `least_chats` were answered; every round has others."""
    num_rounds = max(1, least_chats // num_chats)
    return pooled(
        [_run_round(pair, scheme, turn * num_chats, num_chats, rtt_s) for turn in range(num_rounds)]
    )


def pooled(outcomes: Sequence[Outcome]) -> Outcome:
    """Of several rounds, in which equally many tokens were counted."""

    def mean(read: Callable[[Outcome], float]) -> float:
        return sum(map(read, outcomes)) / len(outcomes)

    return Outcome(
        pace=1 / mean(lambda it: 1 / it.pace),
        verify_ms=mean(lambda it: it.verify_ms),
        draft_ms=mean(lambda it: it.draft_ms),
        tokens_per_commit=mean(lambda it: it.tokens_per_commit),
        drafts_per_chat=mean(lambda it: it.drafts_per_chat),
        uploads_share=mean(lambda it: it.uploads_share),
        is_exact=all(it.is_exact for it in outcomes),
    )


def _run_round(pair: Pair, scheme: Scheme, first: int, num_chats: int, rtt_s: float) -> Outcome:
    """All chats begin at once; counted is the time in which all of them are being answered."""
    time, target = VirtualTime(), pair.target
    engine = _engine(target)
    limits = SchedulerLimits(
        max_sessions=num_chats,
        max_batch_tokens=1024,
        fixed_ms=target.fixed_ms,
        row_ms=target.row_ms,
    )
    region = Region(time, engine, pair, limits, new_reply, num_drafts=scheme.region_drafts)
    averages = GroupAverages()
    truths = {number: truth_of(number) for number in range(first, first + num_chats)}
    replies: dict[int, list[int]] = {number: [] for number in truths}
    chats: list[EdgeChat] = []
    for number, truth in truths.items():
        sends = scheme.uploads is not Uploads.NEVER
        drafted = sends or scheme.region_drafts > 0
        opening = OpenRequest(
            number,
            prompt_of(number),
            _SAMPLING,
            edge_drafts=drafted,
            # Its copies of the text: the default where the controller decides, else none.
            region_drafts=scheme.uploads is Uploads.AUTO,
        )
        if sends:
            upload = UploadPolicy(uploads=scheme.uploads)
            chat = EdgeChat(
                *(time, region, pair, opening, truth, new_reply, averages),
                rtt_s=rtt_s,
                vocabulary_size=VOCABULARY,
                upload=upload,
            )
            chats.append(chat)
            replies[number] = chat.ids
            chat.begin()
        else:
            region.open(opening, truth, _keep(replies[number]))
    time.run()
    is_exact = all(tuple(replies[number]) == truth for number, truth in truths.items())
    counts = [chat.session.reply.controller.counts for chat in chats if chat.session.reply]
    num_with = sum(it.commits_with_uploads for it in counts)
    num_all = num_with + sum(it.commits_without_uploads for it in counts)
    share = num_with / num_all if num_all else 0.0
    return _outcome(region.records, list(truths), share, is_exact)


def _keep(ids: list[int]) -> Callable[[SessionCommit | Finished], None]:
    def told(event: SessionCommit | Finished) -> None:
        if isinstance(event, SessionCommit):
            ids.extend((*event.commit.accepted_ids, *event.commit.ids))

    return told


def _outcome(
    records: Sequence[CallRecord], chats: Sequence[int], uploads_share: float, is_exact: bool
) -> Outcome:
    totals = dict.fromkeys(chats, 0)
    begin = end = None
    for index, record in enumerate(records):
        for chat, count in record.committed.items():
            totals[chat] += count
        if begin is None and min(totals.values()) >= WARM_TOKENS:
            begin = index
        if max(totals.values()) >= NUM_TOKENS - 8:
            end = index
            break
    assert begin is not None and end is not None and end > begin
    window = records[begin + 1 : end + 1]
    seconds = records[end].ended_at - records[begin].ended_at
    num_tokens = sum(sum(record.committed.values()) for record in window)
    num_commits = sum(record.num_chats for record in window)
    return Outcome(
        pace=num_tokens / seconds / len(chats),
        verify_ms=sum(record.verify_ms for record in window) / len(window),
        draft_ms=sum(record.draft_ms for record in window) / len(window),
        tokens_per_commit=num_tokens / num_commits,
        drafts_per_chat=sum(it.num_rows - it.num_chats for it in window) / num_commits,
        uploads_share=uploads_share,
        is_exact=is_exact,
    )


def new_reply(params: SamplingParams) -> ReplyText:
    """The text of a reply."""
    return ReplyText(params, {0}, Detokenizer(_WORDS))


def prompt_of(number: int) -> tuple[int, ...]:
    """Another one for each chat."""
    return tuple((7 * number + 31 * place) % (VOCABULARY - 1) + 1 for place in range(_NUM_PROMPT))


@lru_cache(maxsize=256)
def truth_of(number: int) -> tuple[int, ...]:
    """The target's own reply to a chat."""
    return generate(_engine(CallCost(0, 0)), prompt_of(number), _SAMPLING, new_reply).ids


def _engine(cost: CallCost) -> FakeEngine:
    """A target whose text repeats nothing: what a region copies from it comes on top."""
    return FakeEngine(
        FakeOptions(
            vocabulary_size=VOCABULARY,
            num_blocks=2048,
            repetition=0.0,
            fixed_ms=cost.fixed_ms,
            row_ms=cost.row_ms,
        )
    )
