"""The bytes of messages between edge and drafter (pure).

A kind, then fields of fixed size, little-endian, then arrays with their length before them. Both
ends are one release on one machine, so there is no version; outrider.codec.frames cuts the stream.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Final

import numpy as np

from outrider.errors import MalformedFrameError
from outrider.sampling.params import SamplingParams
from services.edge.drafter.messages import (
    Close,
    Commit,
    Downward,
    Guess,
    Open,
    Ready,
    Report,
    Source,
    Unfit,
    Upward,
)

MAX_FRAME_BYTES: Final = 1 << 20
"""A prompt of 200,000 ids."""
_SESSION: Final = struct.Struct("<BI")
_SAMPLING: Final = struct.Struct("<7dQIIB")
_GUESS: Final = struct.Struct("<BIII")
_REPORT: Final = struct.Struct("<B16Q")
_COUNT: Final = struct.Struct("<I")
_LEAD: Final = struct.Struct("<H")
_SOURCES: Final = frozenset(Source)
_FULL: Final = 65_535


class _Kind(IntEnum):
    """The first byte of a frame."""

    OPEN = 1
    COMMIT = 2
    CLOSE = 3
    GUESS = 4
    READY = 5
    UNFIT = 6
    REPORT = 7


def encode(message: Downward | Upward) -> bytes:
    """One frame's payload."""
    match message:
        case Open():
            return _SESSION.pack(_Kind.OPEN, message.session) + _opening(message)
        case Commit(session, ids, lead):
            return _SESSION.pack(_Kind.COMMIT, session) + _ids(ids) + _LEAD.pack(lead)
        case Close(session):
            return _SESSION.pack(_Kind.CLOSE, session)
        case Guess():
            return _guess(message)
        case Ready(text) | Unfit(text):
            return (
                bytes([_Kind.READY if isinstance(message, Ready) else _Kind.UNFIT]) + text.encode()
            )
        case Report():
            return _REPORT.pack(_Kind.REPORT, *_counts(message))


def decode_down(payload: bytes) -> Downward:
    """What the edge said. Raises MalformedFrameError, and InvalidSamplingError."""
    fields = _Fields(payload)
    kind, session = fields.take(_SESSION)
    match kind:
        case _Kind.OPEN:
            prompt, reply, ends = fields.ids(), fields.ids(), fields.ids()
            params, (lead,) = _params(fields), fields.take(_LEAD)
            return Open(session, prompt, reply, params, ends, lead, fields.rest())
        case _Kind.COMMIT:
            ids, (lead,) = fields.ids(), fields.take(_LEAD)
            return Commit(session, ids, lead)
        case _Kind.CLOSE:
            return Close(session)
        case _:
            raise MalformedFrameError(f"the edge sent a frame of kind {kind}, which is not known")


def decode_up(payload: bytes) -> Upward:
    """What the drafter said. Raises MalformedFrameError."""
    fields = _Fields(payload)
    match payload[0]:
        case _Kind.GUESS:
            return _guessed(fields)
        case _Kind.READY:
            return Ready(payload[1:].decode(errors="replace"))
        case _Kind.UNFIT:
            return Unfit(payload[1:].decode(errors="replace"))
        case _Kind.REPORT:
            return _reported(fields)
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

    def array(self, kind: str) -> list[int]:
        (count,) = self.take(_COUNT)
        size = count * np.dtype(kind).itemsize
        data = self._payload[self._at : self._at + size]
        if len(data) != size:
            raise MalformedFrameError(f"a drafter's frame lacks {size - len(data)} bytes")
        self._at += size
        values: list[int] = np.frombuffer(data, kind).tolist()
        return values

    def ids(self) -> tuple[int, ...]:
        return tuple(self.array("<u4"))

    def rest(self) -> bytes:
        return self._payload[self._at :]


def _array(values: Sequence[float], kind: str) -> bytes:
    return _COUNT.pack(len(values)) + np.asarray(values, kind).tobytes()


def _ids(ids: Sequence[int]) -> bytes:
    return _array(ids, "<u4")


def _opening(message: Open) -> bytes:
    """Ids, then what of the sampling decides a token; stop strings end a reply at the edge."""
    params = message.params
    fixed = _SAMPLING.pack(
        *(params.temperature, params.top_p, params.min_p, params.repetition_penalty),
        *(params.presence_penalty, params.frequency_penalty, params.acceptance_threshold),
        *(params.seed, params.top_k, params.max_tokens, params.ignore_eos),
    )
    biases = _ids(list(params.logit_bias)) + _array(list(params.logit_bias.values()), "<f8")
    ids = _ids(message.prompt) + _ids(message.reply) + _ids(message.ends)
    return ids + fixed + biases + _LEAD.pack(message.lead) + message.group


def _params(fields: _Fields) -> SamplingParams:
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


def _guess(message: Guess) -> bytes:
    """A survival in 16 bits: it decides a threshold, no more."""
    survival = [round(chance * _FULL) for chance in message.survival]
    return (
        _GUESS.pack(_Kind.GUESS, message.session, message.base, message.call_us)
        + _ids(message.ids)
        + _array(survival, "<u2")
        + _array(message.sources, "<u1")
    )


def _guessed(fields: _Fields) -> Guess:
    _, session, base, call_us = fields.take(_GUESS)
    ids, survival = fields.ids(), fields.array("<u2")
    sources = fields.array("<u1")
    if not len(ids) == len(survival) == len(sources):
        raise MalformedFrameError("a guess has not one survival and one source per id")
    if any(source not in _SOURCES for source in sources):
        raise MalformedFrameError("a guess names a source that is not known")
    chances = tuple(chance / _FULL for chance in survival)
    return Guess(session, base, ids, chances, tuple(map(Source, sources)), call_us)


def _reported(fields: _Fields) -> Report:
    _, *counts = fields.take(_REPORT)
    *first, d0, d1, d2, a0, a1, a2 = counts
    sessions, modelled, calls, rows, call_us, refused, evicted, *last = first
    branches, promoted, prompt_token_us = last
    return Report(
        num_sessions=sessions,
        num_modelled=modelled,
        num_calls=calls,
        num_rows=rows,
        call_us=call_us,
        num_refused=refused,
        num_evicted=evicted,
        num_branches=branches,
        num_promoted=promoted,
        prompt_token_us=prompt_token_us,
        drafted=(d0, d1, d2),
        accepted=(a0, a1, a2),
    )


def _counts(report: Report) -> tuple[int, ...]:
    return (
        *(report.num_sessions, report.num_modelled, report.num_calls, report.num_rows),
        *(report.call_us, report.num_refused, report.num_evicted, report.num_branches),
        *(report.num_promoted, report.prompt_token_us, *report.drafted, *report.accepted),
    )
