"""A request for vectors in one message, as frames: for stand-ins that serve both."""

from __future__ import annotations

from collections.abc import AsyncIterator

from outrider.v1 import embedding_pb2


async def frames_of(
    request: embedding_pb2.EmbedAtOnceRequest,
) -> AsyncIterator[embedding_pb2.EmbedRequest]:
    """Its open, and all its inputs."""
    yield embedding_pb2.EmbedRequest(open=request.open)
    inputs = embedding_pb2.EmbedInputs(inputs=request.inputs)
    yield embedding_pb2.EmbedRequest(inputs=inputs)
