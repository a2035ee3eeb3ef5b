"""Messages between edge and drafter, and their encoding (pure).

A frame is a kind, fields of fixed size in little-endian order, then arrays with their length before
them. Both ends are one release on one machine, so frames have no version; outrider.codec.frames
cuts the stream into frames.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, TypeAlias

import numpy as np

from outrider.errors import MalformedFrameError
from outrider.sampling.params import SamplingParams
from services.edge.session.events import MAX_LEAD

MAX_FRAME_BYTES: Final = 1 << 20
"""Enough for a prompt of 200,000 ids."""


class DraftSource(IntEnum):
    """The source of a draft token, by its number on the wire."""

    SUFFIX = 0
    """Copied from the text, or a frequent n-gram."""
    MODEL = 1
    BOTH = 2
    """The two agreed."""


@dataclass(frozen=True, slots=True)
class OpenReply:
    """Edge to drafter: draft this reply."""

    session: int
    """The edge's number. A number that is open already starts over."""
    prompt: tuple[int, ...]
    reply: tuple[int, ...]
    """The part of the reply that is final already."""
    params: SamplingParams
    ends: tuple[int, ...] = ()
    """Ids that end the reply."""
    lead: int = MAX_LEAD
    """Most drafts wanted ahead of the final tokens; the drafter has a limit of its own."""
    group: bytes = b""
    """The trust group whose replies learn from each other; empty: this reply learns by itself."""
    group_lasts: bool = False
    """The group's name is the same after a restart of the edge."""
    prefixes: tuple[int, ...] = ()
    """Numbers of the static prefixes whose KV it may use."""


@dataclass(frozen=True, slots=True)
class CommitTokens:
    """Edge to drafter: these ids follow the final ones."""

    session: int
    ids: tuple[int, ...]
    lead: int = MAX_LEAD
    """Drafts wanted ahead of the final tokens; replaces OpenReply.lead."""


@dataclass(frozen=True, slots=True)
class CloseReply:
    """Edge to drafter: no more drafts are wanted."""

    session: int


@dataclass(frozen=True, slots=True)
class DraftUpdate:
    """Drafter to edge: all drafts for a reply; an update replaces the one before it."""

    session: int
    base: int
    """Final tokens of the reply before the drafts, as far as the drafter knew."""
    ids: tuple[int, ...]
    survival: tuple[float, ...]
    """[n] probability that each draft and all before it are right; never rising."""
    sources: tuple[DraftSource, ...]
    """[n]"""
    call_us: int = 0
    """Recent duration of a call of the model, microseconds."""


@dataclass(frozen=True, slots=True)
class DrafterReady:
    """Drafter to edge: the model is loaded."""

    model: str


@dataclass(frozen=True, slots=True)
class DrafterUnusable:
    """Drafter to edge, last: it cannot load a model here, and a restart would fail the same way."""

    reason: str


@dataclass(frozen=True, slots=True)
class DrafterStats:
    """Drafter to edge, once a second: counts since the process started."""

    num_sessions: int
    """Open now."""
    num_modelled: int
    """Number of sessions that use the model; the others only get copies of their text."""
    num_calls: int
    """Calls of the model."""
    num_rows: int
    """Tokens in these calls."""
    call_us: int
    """Microseconds in these calls."""
    num_refused: int
    """Sessions refused for want of a place or of KV blocks."""
    num_evicted: int
    """Sessions whose KV blocks were taken for others."""
    num_reused: int
    """Prompt tokens that were not computed, since an earlier reply of the chat had left their
    KV."""
    num_branches: int
    """Alternatives drafted beside a chain."""
    num_promoted: int
    """Number of opened alternatives that turned out right."""
    num_pauses: int
    """How often the model paused because others needed the cores."""
    paused_us: int
    """Microseconds of these pauses, each counted as a whole when it begins."""
    prompt_token_us: int
    """Recent prefill time per prompt token, microseconds; 0: no prompt was read yet."""
    drafted: tuple[int, int, int]
    """Drafts by source."""
    accepted: tuple[int, int, int]
    """Number of drafts that turned out right, by source."""


ToDrafter: TypeAlias = OpenReply | CommitTokens | CloseReply
FromDrafter: TypeAlias = DraftUpdate | DrafterReady | DrafterUnusable | DrafterStats

_SESSION: Final = struct.Struct("<BI")
_SAMPLING: Final = struct.Struct("<7dQIIB")
_UPDATE: Final = struct.Struct("<BIII")
_STATS: Final = struct.Struct("<B19Q")
_COUNT: Final = struct.Struct("<I")
_LEAD: Final = struct.Struct("<H")
_LEAD_AND_LASTS: Final = struct.Struct("<HB")
_SOURCES: Final = frozenset(DraftSource)
_SURVIVAL_STEPS: Final = 65_535
"""A survival is sent in 16 bits: it is compared with thresholds and nothing else."""


class _Kind(IntEnum):
    """The first byte of a frame."""

    OPEN = 1
    COMMIT = 2
    CLOSE = 3
    UPDATE = 4
    READY = 5
    UNUSABLE = 6
    STATS = 7


def encode(message: ToDrafter | FromDrafter) -> bytes:
    """One frame's payload."""
    match message:
        case OpenReply():
            return _SESSION.pack(_Kind.OPEN, message.session) + _opening(message)
        case CommitTokens(session, ids, lead):
            return _SESSION.pack(_Kind.COMMIT, session) + _ids(ids) + _LEAD.pack(lead)
        case CloseReply(session):
            return _SESSION.pack(_Kind.CLOSE, session)
        case DraftUpdate():
            return _update(message)
        case DrafterReady(model):
            return bytes([_Kind.READY]) + model.encode()
        case DrafterUnusable(reason):
            return bytes([_Kind.UNUSABLE]) + reason.encode()
        case DrafterStats():
            return _stats(message)


def decode_to_drafter(payload: bytes) -> ToDrafter:
    """A message from the edge. Raises MalformedFrameError, and InvalidSamplingError."""
    fields = _Fields(payload)
    kind, session = fields.take(_SESSION)
    match kind:
        case _Kind.OPEN:
            prompt, reply, ends = fields.ids(), fields.ids(), fields.ids()
            params = _read_params(fields)
            prefixes = fields.ids()
            lead, group_lasts = fields.take(_LEAD_AND_LASTS)
            group = fields.rest()
            return OpenReply(
                session, prompt, reply, params, ends, lead, group, bool(group_lasts), prefixes
            )
        case _Kind.COMMIT:
            ids = fields.ids()
            (lead,) = fields.take(_LEAD)
            return CommitTokens(session, ids, lead)
        case _Kind.CLOSE:
            return CloseReply(session)
        case _:
            raise MalformedFrameError(f"the edge sent a frame of kind {kind}, which is not known")


def decode_from_drafter(payload: bytes) -> FromDrafter:
    """A message from the drafter. Raises MalformedFrameError."""
    fields = _Fields(payload)
    match payload[0]:
        case _Kind.UPDATE:
            return _read_update(fields)
        case _Kind.READY:
            return DrafterReady(payload[1:].decode(errors="replace"))
        case _Kind.UNUSABLE:
            return DrafterUnusable(payload[1:].decode(errors="replace"))
        case _Kind.STATS:
            return _read_stats(fields)
        case kind:
            raise MalformedFrameError(f"the drafter sent a frame of unknown kind {kind}")


class _Fields:
    """Reads a payload from front to back."""

    def __init__(self, payload: bytes) -> None:
        self._payload = payload
        self._at = 0

    def take(self, fields: struct.Struct) -> tuple[int, ...]:
        try:
            values = fields.unpack_from(self._payload, self._at)
        except struct.error as error:
            raise MalformedFrameError(f"a drafter's frame is cut short: {error}") from error
        self._at += fields.size
        return values

    def array(self, dtype: str) -> list[int]:
        (count,) = self.take(_COUNT)
        size = count * np.dtype(dtype).itemsize
        data = self._payload[self._at : self._at + size]
        if len(data) != size:
            raise MalformedFrameError(f"a drafter's frame lacks {size - len(data)} bytes")
        self._at += size
        values: list[int] = np.frombuffer(data, dtype).tolist()
        return values

    def ids(self) -> tuple[int, ...]:
        return tuple(self.array("<u4"))

    def rest(self) -> bytes:
        return self._payload[self._at :]


def _array(values: Sequence[float], dtype: str) -> bytes:
    return _COUNT.pack(len(values)) + np.asarray(values, dtype).tobytes()


def _ids(ids: Sequence[int]) -> bytes:
    return _array(ids, "<u4")


def _opening(message: OpenReply) -> bytes:
    """Ids, then the sampling values that decide a token; stop strings end a reply at the edge."""
    params = message.params
    fixed = _SAMPLING.pack(
        params.temperature,
        params.top_p,
        params.min_p,
        params.repetition_penalty,
        params.presence_penalty,
        params.frequency_penalty,
        params.acceptance_threshold,
        params.seed,
        params.top_k,
        params.max_tokens,
        params.ignore_eos,
    )
    biases = _ids(list(params.logit_bias)) + _array(list(params.logit_bias.values()), "<f8")
    ids = _ids(message.prompt) + _ids(message.reply) + _ids(message.ends)
    last = _ids(message.prefixes) + _LEAD_AND_LASTS.pack(message.lead, message.group_lasts)
    return ids + fixed + biases + last + message.group


def _read_params(fields: _Fields) -> SamplingParams:
    *floats, seed, top_k, max_tokens, ignore_eos = fields.take(_SAMPLING)
    temperature, top_p, min_p, repetition, presence, frequency, threshold = floats
    biased, biases = fields.ids(), fields.array("<f8")
    if len(biased) != len(biases):
        raise MalformedFrameError("an opening has not one bias per id")
    return SamplingParams(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition,
        presence_penalty=presence,
        frequency_penalty=frequency,
        logit_bias=dict(zip(biased, biases, strict=True)),
        seed=seed,
        max_tokens=max_tokens,
        ignore_eos=bool(ignore_eos),
        acceptance_threshold=threshold,
    )


def _update(message: DraftUpdate) -> bytes:
    survival = [round(chance * _SURVIVAL_STEPS) for chance in message.survival]
    return (
        _UPDATE.pack(_Kind.UPDATE, message.session, message.base, message.call_us)
        + _ids(message.ids)
        + _array(survival, "<u2")
        + _array(message.sources, "<u1")
    )


def _read_update(fields: _Fields) -> DraftUpdate:
    _, session, base, call_us = fields.take(_UPDATE)
    ids = fields.ids()
    survival = fields.array("<u2")
    sources = fields.array("<u1")
    if not len(ids) == len(survival) == len(sources):
        raise MalformedFrameError("a draft update has not one survival and one source per id")
    if any(source not in _SOURCES for source in sources):
        raise MalformedFrameError("a draft update names a source that is not known")
    return DraftUpdate(
        session=session,
        base=base,
        ids=ids,
        survival=tuple(steps / _SURVIVAL_STEPS for steps in survival),
        sources=tuple(map(DraftSource, sources)),
        call_us=call_us,
    )


def _stats(stats: DrafterStats) -> bytes:
    """Pack the fields in the order in which DrafterStats declares them."""
    return _STATS.pack(
        _Kind.STATS,
        stats.num_sessions,
        stats.num_modelled,
        stats.num_calls,
        stats.num_rows,
        stats.call_us,
        stats.num_refused,
        stats.num_evicted,
        stats.num_reused,
        stats.num_branches,
        stats.num_promoted,
        stats.num_pauses,
        stats.paused_us,
        stats.prompt_token_us,
        *stats.drafted,
        *stats.accepted,
    )


def _read_stats(fields: _Fields) -> DrafterStats:
    _, *counts = fields.take(_STATS)
    return DrafterStats(
        num_sessions=counts[0],
        num_modelled=counts[1],
        num_calls=counts[2],
        num_rows=counts[3],
        call_us=counts[4],
        num_refused=counts[5],
        num_evicted=counts[6],
        num_reused=counts[7],
        num_branches=counts[8],
        num_promoted=counts[9],
        num_pauses=counts[10],
        paused_us=counts[11],
        prompt_token_us=counts[12],
        drafted=(counts[13], counts[14], counts[15]),
        accepted=(counts[16], counts[17], counts[18]),
    )
