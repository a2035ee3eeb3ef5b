"""POST /v1/embeddings of the OpenAI API: requests and answers (pure)."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import UNSET, UnsetType

from outrider.cost import Cost
from outrider.models.chat import check_text
from services.edge.http.bodies import read
from services.edge.http.openai_errors import refused
from services.edge.http.openai_reply import decimals
from services.edge.session.request_fields import residency

MAX_INPUTS: Final = 2048
"""Most inputs of one request, as in that API."""
_MAX_DIMENSIONS: Final = 1 << 16
_MAX_TYPE_CHARS: Final = 64
_MAX_ID: Final = (1 << 32) - 1
_WHOLE: Final = -1


class OtherInput(msgspec.Struct, kw_only=True, gc=False):
    """An input that is no text, such as an image; refused."""

    type: str = "object"


_Inputs: TypeAlias = list[str | int | list[int] | OtherInput]


class EmbeddingsRequest(msgspec.Struct, kw_only=True):
    """Asks for the vectors of texts. Fields that are not listed are ignored."""

    input: str | _Inputs
    """A text or its token ids, one or several, up to 2,048."""
    model: str | None = None
    encoding_format: Literal["float", "base64"] = "float"
    """base64: of the values as little-endian float32."""
    dimensions: int | None = None
    """Keep only this many values of each vector."""
    user: str | None = None
    truncate_prompt_tokens: int | None = None
    """-1: inputs that are longer than the model takes lose their end (vLLM); otherwise they are
    refused."""
    residency: list[str] | None = None
    """Regions that may hold the inputs."""


class EmbeddingObject(msgspec.Struct, kw_only=True):
    """The vector of one input."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingUsage(msgspec.Struct, kw_only=True):
    """Tokens of all inputs."""

    prompt_tokens: int
    total_tokens: int
    cost: str | UnsetType = UNSET
    """Ours: the price of the request, if the operator has set prices."""
    currency: str | UnsetType = UNSET


class EmbeddingList(msgspec.Struct, kw_only=True):
    """The answer, in the order of the inputs."""

    object: Literal["list"] = "list"
    data: list[EmbeddingObject]
    model: str
    usage: EmbeddingUsage
    system_fingerprint: str | UnsetType = UNSET
    """The model identity, shortened, as for chats. Vectors with equal ones are equal byte for
    byte."""


@dataclass(frozen=True, slots=True)
class AskedEmbeddings:
    """The contents of a request."""

    inputs: tuple[str | bytes, ...]
    """Texts, or token ids as little-endian u32."""
    model: str
    user: str
    dimensions: int
    """0: all."""
    truncate: bool
    is_base64: bool
    residency: tuple[str, ...]


_decode: Final = msgspec.json.Decoder(EmbeddingsRequest).decode


def asked_of(body: bytes) -> AskedEmbeddings:
    """Raises InvalidRequestError."""
    asked = read(_decode, body)
    inputs = _inputs(asked.input)
    if not inputs:
        raise refused("input", "input is empty; send a text, or a list of them")
    if len(inputs) > MAX_INPUTS:
        raise refused("input", f"input has {len(inputs)} texts; send {MAX_INPUTS} at once at most")
    if asked.dimensions is not None and not 1 <= asked.dimensions <= _MAX_DIMENSIONS:
        raise refused("dimensions", "dimensions is a number from 1 on, or left out")
    if asked.truncate_prompt_tokens not in (None, _WHOLE):
        raise refused(
            "truncate_prompt_tokens",
            "truncate_prompt_tokens is -1, for as many as the model takes, or left out",
        )
    return AskedEmbeddings(
        inputs=inputs,
        model=asked.model or "",
        user=asked.user or "",
        dimensions=asked.dimensions or 0,
        truncate=asked.truncate_prompt_tokens == _WHOLE,
        is_base64=asked.encoding_format == "base64",
        residency=residency(asked.residency or ()),
    )


def answer_of(
    vectors: npt.NDArray[np.float32],
    model: str,
    num_tokens: int,
    cost: Cost | None,
    fingerprint: str = "",
    *,
    is_base64: bool,
) -> bytes:
    """JSON of [n, d] vectors. Takes a millisecond for some of them: not for an event loop."""
    data = [
        EmbeddingObject(index=index, embedding=_written(vector, is_base64=is_base64))
        for index, vector in enumerate(vectors)
    ]
    usage = EmbeddingUsage(
        prompt_tokens=num_tokens,
        total_tokens=num_tokens,
        cost=UNSET if cost is None else decimals(cost.amount_nanos),
        currency=UNSET if cost is None else cost.currency,
    )
    return msgspec.json.encode(
        EmbeddingList(data=data, model=model, usage=usage, system_fingerprint=fingerprint or UNSET)
    )


def _written(vector: npt.NDArray[np.float32], *, is_base64: bool) -> list[float] | str:
    if is_base64:
        return base64.b64encode(vector.astype("<f4", copy=False).tobytes()).decode()
    values: list[float] = vector.tolist()
    return values


def _inputs(given: str | _Inputs) -> tuple[str | bytes, ...]:
    if isinstance(given, str):
        return (_text(given),)
    kinds = {type(each) for each in given}
    if OtherInput in kinds:
        where, other = next((at, it) for at, it in enumerate(given) if isinstance(it, OtherInput))
        raise refused(
            f"input[{where}]",
            f"input[{where}] is an object of type {other.type[:_MAX_TYPE_CHARS]!r}, and models "
            "here read only text; send a string or token ids, such as a description",
        )
    if len(kinds) > 1:
        raise refused("input", "input is texts, token ids, or lists of token ids; send one kind")
    if kinds == {int}:
        return (_ids([each for each in given if isinstance(each, int)]),)
    return tuple(
        _text(each) if isinstance(each, str) else _ids(each if isinstance(each, list) else [])
        for each in given
    )


def _text(text: str) -> str:
    if not text:
        raise refused("input", "a text of input is empty; leave it out")
    check_text(text)
    return text


def _ids(ids: list[int]) -> bytes:
    if not ids:
        raise refused("input", "a list of token ids is empty; leave it out")
    if not all(0 <= each <= _MAX_ID for each in ids):
        raise refused("input", "token ids are numbers from 0 on")
    return np.array(ids, "<u4").tobytes()
