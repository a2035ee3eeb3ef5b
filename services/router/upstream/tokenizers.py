"""Tokenizer services as the router uses them: one stream each, failover in the order given."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import grpc.aio
from google.protobuf.message import DecodeError

from outrider.errors import OverloadedError, UnavailableError
from outrider.rpc import from_rpc_error, make_channel
from outrider.v1 import common_pb2, tokenizer_pb2, tokenizer_pb2_grpc
from outrider.wire.errors import from_detail

_EncodeCall = grpc.aio.StreamStreamCall[tokenizer_pb2.EncodeRequest, tokenizer_pb2.EncodeResponse]


@dataclass(frozen=True, slots=True)
class Tokenized:
    """A prompt as ids."""

    ids: common_pb2.TokenBlock
    vocabulary_digest: bytes


class TokenizerStream:
    """One Encode stream to one tokenizer, opened on first use and again after a loss."""

    def __init__(self, address: str, *, max_message_bytes: int) -> None:
        self.address = address
        self._channel = make_channel(address, max_message_bytes=max_message_bytes)
        self._call: _EncodeCall | None = None
        self._reader: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()
        self._waiting: dict[int, asyncio.Future[Tokenized]] = {}
        self._last_number = 0

    async def encode(self, request: tokenizer_pb2.EncodeRequest) -> Tokenized:
        """Tokenize; `request.number` is set here. Raises what the tokenizer answers, and
        UnavailableError when its stream breaks."""
        call = self._open()
        self._last_number += 1
        number = request.number = self._last_number
        answer: asyncio.Future[Tokenized] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            async with self._writing:
                await call.write(request)
            return await answer
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            # Only the write raises these: the call ended, whatever status gRPC makes of it.
            raise UnavailableError(f"Tokenizer {self.address} ended its stream.") from error
        finally:
            self._waiting.pop(number, None)
            if answer.done() and not answer.cancelled():
                answer.exception()  # seen: the write may have failed first

    async def close(self) -> None:
        """End the stream and whatever waits for it."""
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
        await self._channel.close()

    def _open(self) -> _EncodeCall:
        if self._call is None:
            stub: tokenizer_pb2_grpc.TokenizerServiceAsyncStub
            stub = tokenizer_pb2_grpc.TokenizerServiceStub(self._channel)
            self._call = stub.Encode()
            self._reader = asyncio.create_task(self._read(self._call))
        return self._call

    async def _read(self, call: _EncodeCall) -> None:
        lost = "ended its stream"
        try:
            async for response in call:
                self._settle(response)
        except grpc.aio.AioRpcError as error:
            lost = f"broke its stream: {from_rpc_error(error).message}"
        except DecodeError:
            lost = "sent bytes that are no answer"
            call.cancel()
        finally:
            self._call = None
            for answer in self._waiting.values():
                if not answer.done():
                    answer.set_exception(UnavailableError(f"Tokenizer {self.address} {lost}."))

    def _settle(self, response: tokenizer_pb2.EncodeResponse) -> None:
        answer = self._waiting.get(response.number)
        if answer is None or answer.done():
            return  # given up on meanwhile
        if response.WhichOneof("result") == "ids":
            answer.set_result(Tokenized(response.ids, response.vocabulary_digest))
        else:
            answer.set_exception(from_detail(response.error))


class TokenizerPool:
    """Asks tokenizers in order until one answers. At most `max_waiting` prompts at once."""

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        timeout_s: float,
        max_waiting: int,
        max_message_bytes: int,
    ) -> None:
        self._streams = [
            TokenizerStream(address, max_message_bytes=max_message_bytes) for address in addresses
        ]
        self._timeout_s = timeout_s
        self._max_waiting = max_waiting
        self._num_waiting = 0

    async def encode(self, request: tokenizer_pb2.EncodeRequest) -> Tokenized:
        """Tokenize one prompt. Raises UnavailableError when no tokenizer answers in time,
        OverloadedError when too many prompts wait, and what a tokenizer says of the prompt."""
        if self._num_waiting >= self._max_waiting:
            raise OverloadedError(
                f"{self._num_waiting} prompts wait for a tokenizer: try again, or send token ids.",
                retry_delay_ms=500,
            )
        self._num_waiting += 1
        try:
            return await self._first_answer(request)
        finally:
            self._num_waiting -= 1

    async def close(self) -> None:
        """End all streams."""
        for stream in self._streams:
            await stream.close()

    async def _first_answer(self, request: tokenizer_pb2.EncodeRequest) -> Tokenized:
        failures: list[str] = []
        overload: OverloadedError | None = None
        for stream in list(self._streams):
            try:
                async with asyncio.timeout(self._timeout_s / len(self._streams)):
                    return await stream.encode(request)
            except OverloadedError as error:
                overload = error
            except UnavailableError as error:
                failures.append(f"{stream.address}: {error.message}")
                self._demote(stream)
            except TimeoutError:
                failures.append(f"{stream.address}: no answer in time")
                self._demote(stream)
        if overload:
            raise overload
        raise UnavailableError(
            "No tokenizer answers, so messages cannot be served "
            f"({'; '.join(failures) or 'none is configured'}): send token ids, or try again.",
            retry_delay_ms=500,
        )

    def _demote(self, stream: TokenizerStream) -> None:
        """Ask it last from now on, so that not every prompt waits for it first."""
        self._streams.remove(stream)
        self._streams.append(stream)
