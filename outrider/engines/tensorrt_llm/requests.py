"""Requests to the runtime: how a slice is asked, and how many may be in flight at once."""

from __future__ import annotations

import weakref
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeAlias

import structlog

from outrider.engines.tensorrt_llm.api import Api, Llm, Output, TokenLogprobs
from outrider.errors import EngineError

log = structlog.get_logger()

COMMITTED_PRIORITY = 60
DRAFT_PRIORITY = 5
"""KV retention priority of drafts, 0 .. 100; the runtime's default is 35. Final tokens outlive
other requests' blocks, drafts are evicted first."""


@dataclass(frozen=True, slots=True)
class Request:
    """One forward pass over what the runtime has not cached of `ids`."""

    ids: tuple[int, ...]
    num_final: int
    """Leading ids that are no drafts."""
    num_candidates: int
    """Likeliest ids per row; 0: no rows, only KV."""
    salt: bytes


class RequestMaker:
    """Translates Requests into arguments of LLM.generate_async."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def options(self, request: Request) -> dict[str, Any]:
        """Keyword arguments. One token is generated and not looked at: the rows hold it too.

        End tokens are the caller's business: `end_id` is required without a tokenizer, and
        `ignore_eos` keeps it from ending anything.
        """
        wanted = request.num_candidates or None
        return {
            "sampling_params": self._api.sampling_params(
                max_tokens=1,
                prompt_logprobs=wanted,
                top_k=1,
                ignore_eos=True,
                end_id=0,
                pad_id=0,
                detokenize=False,
            ),
            "streaming": False,
            "kv_cache_retention_config": self._retention(request),
            "cache_salt": request.salt.hex() or None,
        }

    def _retention(self, request: Request) -> object:
        ranges = [self._api.token_range(0, request.num_final, COMMITTED_PRIORITY)]
        if request.num_final < len(request.ids):
            ranges.append(self._api.token_range(request.num_final, None, DRAFT_PRIORITY))
        return self._api.retention_config(ranges, DRAFT_PRIORITY)


_Wanted: TypeAlias = SimpleQueue[tuple[Output, "Future[None]"] | None]


class Waiter:
    """Waits for requests, never longer than the given time.

    In some releases RequestOutput.result takes a timeout and ignores it (executor/result.py of the
    1.2 line), so it is called in a thread of its own; if the runtime dies, only that thread hangs.
    The thread ends with the Waiter.
    """

    def __init__(self) -> None:
        self._wanted: _Wanted = SimpleQueue()
        weakref.finalize(self, self._wanted.put, None)
        Thread(target=_serve, args=(self._wanted,), name="trtllm-wait", daemon=True).start()

    def wait(self, output: Output, timeout_s: float) -> bool:
        """Whether the request ended in time. Raises the request's own error."""
        done: Future[None] = Future()
        self._wanted.put((output, done))
        try:
            done.result(timeout_s)
        except TimeoutError:
            if done.done():
                raise
            return False
        return True


def _serve(wanted: _Wanted) -> None:
    while (entry := wanted.get()) is not None:
        output, done = entry
        try:
            output.result()
        except Exception as error:
            done.set_exception(error)
        else:
            done.set_result(None)
        del output, done, entry


@dataclass(slots=True, eq=False)
class Ticket:
    """A request under way."""

    output: Output
    logits_bytes: int
    """0: it was asked for no rows."""
    landed: bool = False
    logprobs: TokenLogprobs | None = None


class Flight:
    """Requests in flight, under a bound on the logits they make the GPU hold.

    A request with rows holds prompt tokens x vocabulary x 4 bytes until it is done, cached tokens
    included. When the next would exceed the bound, the oldest is waited for first.
    """

    def __init__(
        self, llm: Llm, maker: RequestMaker, *, row_bytes: int, max_bytes: int, timeout_s: float
    ) -> None:
        self._llm = llm
        self._maker = maker
        self._row_bytes = row_bytes
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        self._waiter = Waiter()
        self._tickets: deque[Ticket] = deque()
        self._lost = False
        self.num_bytes = 0
        """Logits held now, at most."""

    def submit(self, request: Request) -> Ticket:
        """Send a request, after waiting for room. Raises EngineError."""
        self._check_not_lost()
        needed = len(request.ids) * self._row_bytes if request.num_candidates else 0
        while needed and self.num_bytes and self.num_bytes + needed > self._max_bytes:
            self.land(next(ticket for ticket in self._tickets if ticket.logits_bytes))
        try:
            output = self._llm.generate_async(list(request.ids), **self._maker.options(request))
        except Exception as error:
            raise _failed("refused a request", error) from error
        ticket = Ticket(output, needed)
        self._tickets.append(ticket)
        self.num_bytes += needed
        return ticket

    def land(self, ticket: Ticket) -> TokenLogprobs | None:
        """Wait for a request; its prompt log probabilities. Raises EngineError."""
        if not ticket.landed:
            self._check_not_lost()
            self._forget(ticket)
            try:
                self._lost = not self._waiter.wait(ticket.output, self._timeout_s)
                self._check_not_lost()
                ticket.logprobs = ticket.output.outputs[0].prompt_logprobs
            except EngineError:
                raise
            except Exception as error:
                raise _failed("failed a request", error) from error
        return ticket.logprobs

    def abort(self, ticket: Ticket) -> None:
        """Give up a request without rows; nothing for one that has landed. Raises EngineError.

        One with rows is never aborted: a worker of the 1.2 line asserts that a request with
        prompt_logprobs ends with logits (executor/base_worker.py), and one that was aborted before
        its pass has none. It is a pass away from its end anyway.
        """
        assert not ticket.logits_bytes
        if ticket.landed:
            return
        self._forget(ticket)
        try:
            ticket.output.abort()
        except Exception as error:
            raise _failed("failed to abort a request", error) from error

    def clear(self) -> None:
        """Abort or wait for everything in flight, and drop the answers. Raises EngineError if an
        abort fails."""
        while self._tickets:
            ticket = self._tickets[0]
            if self._lost:
                self._forget(ticket)
            elif ticket.logits_bytes == 0:
                self.abort(ticket)
            else:
                try:
                    self.land(ticket)
                except EngineError as error:
                    log.warning("trtllm_request_failed_as_well", error=str(error))

    def _forget(self, ticket: Ticket) -> None:
        ticket.landed = True
        self._tickets.remove(ticket)
        self.num_bytes -= ticket.logits_bytes

    def _check_not_lost(self) -> None:
        if self._lost:
            raise EngineError(
                f"TensorRT-LLM did not end a request within {self._timeout_s:g} s; start the "
                "replica again, with a larger trtllm.request_timeout_s if that was too short"
            )


def _failed(what: str, error: Exception) -> EngineError:
    """The runtime's errors have many types, some without a text."""
    return EngineError(f"TensorRT-LLM {what}: {type(error).__name__}: {error}")
