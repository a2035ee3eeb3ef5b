"""Openings and drafts that a replica has to refuse, each with the error it has to give."""

from __future__ import annotations

import random
from collections.abc import Callable

from outrider.codec.tokens import TokenCoder
from outrider.errors import (
    BadTokenBlockError,
    EmptyPromptError,
    InvalidRequestError,
    InvalidSamplingError,
    OutriderError,
    PromptTooLongError,
    UnknownModelError,
    VocabularyMismatchError,
)
from outrider.v1 import common_pb2, inference_pb2
from outrider.wire import token_block_to_proto

_TOO_MANY_IDS = 1 << 16
"""More than the context of any model here."""
_ANY_ID = 5
"""Of every vocabulary."""


class BadInput:
    """Spoils what is right."""

    def __init__(self, coder: TokenCoder, chance: random.Random) -> None:
        self._coder = coder
        self._chance = chance
        self._ways: dict[
            str, tuple[Callable[[inference_pb2.OpenSession], None], type[OutriderError]]
        ] = {
            "no request id": (_no_request_id, InvalidRequestError),
            "unknown model": (_unknown_model, UnknownModelError),
            "other vocabulary": (_other_vocabulary, VocabularyMismatchError),
            "no prompt": (_no_prompt, EmptyPromptError),
            "prompt without tokens": (self._no_tokens, EmptyPromptError),
            "prompt too long": (self._too_long, PromptTooLongError),
            "wrong checksum": (_wrong_checksum, BadTokenBlockError),
            "truncated prompt": (_truncated, BadTokenBlockError),
            "unknown codec": (_unknown_codec, BadTokenBlockError),
            "unknown priority": (_unknown_priority, InvalidRequestError),
            "temperature is not a number": (_no_temperature, InvalidSamplingError),
            "more tokens resumed than asked for": (self._resumed_too_far, InvalidRequestError),
        }

    @property
    def names(self) -> tuple[str, ...]:
        """What can be wrong with an opening."""
        return tuple(self._ways)

    def spoil(self, opening: inference_pb2.OpenSession, name: str = "") -> type[OutriderError]:
        """Make the opening bad in this way, or in any; the error that it has to end with."""
        change, error = self._ways[name or self._chance.choice(self.names)]
        change(opening)
        return error

    def draft(self) -> inference_pb2.Draft:
        """Guesses that are no ids: the session ends with BadTokenBlockError."""
        return inference_pb2.Draft(epoch=1, base=0, ids=b"\xff" * self._chance.randint(1, 8))

    def _block(self, ids: list[int]) -> common_pb2.TokenBlock:
        return token_block_to_proto(self._coder.encode(ids))

    def _no_tokens(self, opening: inference_pb2.OpenSession) -> None:
        opening.ids.tail.CopyFrom(self._block([]))

    def _too_long(self, opening: inference_pb2.OpenSession) -> None:
        opening.ids.tail.CopyFrom(self._block([_ANY_ID] * _TOO_MANY_IDS))

    def _resumed_too_far(self, opening: inference_pb2.OpenSession) -> None:
        opening.resume.CopyFrom(self._block([_ANY_ID] * (opening.sampling.max_tokens + 1)))


def _no_request_id(opening: inference_pb2.OpenSession) -> None:
    opening.request_id = ""


def _unknown_model(opening: inference_pb2.OpenSession) -> None:
    opening.model = "no such model"


def _other_vocabulary(opening: inference_pb2.OpenSession) -> None:
    opening.vocabulary_digest = b"\xaa" * 32


def _no_prompt(opening: inference_pb2.OpenSession) -> None:
    opening.ClearField("ids")


def _wrong_checksum(opening: inference_pb2.OpenSession) -> None:
    opening.ids.tail.checksum ^= 1


def _truncated(opening: inference_pb2.OpenSession) -> None:
    opening.ids.tail.payload = opening.ids.tail.payload[:-1]


def _unknown_codec(opening: inference_pb2.OpenSession) -> None:
    opening.ids.tail.codec = 9  # type: ignore[assignment]


def _unknown_priority(opening: inference_pb2.OpenSession) -> None:
    opening.priority = 9  # type: ignore[assignment]


def _no_temperature(opening: inference_pb2.OpenSession) -> None:
    opening.sampling.temperature = float("nan")
