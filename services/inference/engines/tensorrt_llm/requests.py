"""Requests to the runtime: how a round is asked, and how many may be in flight at once."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from outrider.errors import EngineError
from services.inference.engines.tensorrt_llm.api import Api, Llm, Output, TokenLogprobs

COMMITTED_PRIORITY = 60
DRAFT_PRIORITY = 5
"""KV retention, 0 .. 100, 35 is the runtime's default: what is final outlives other requests'
blocks, drafts go first."""


@dataclass(frozen=True, slots=True)
class Request:
    """One forward pass over what the runtime has not cached of `ids`."""

    ids: tuple[int, ...]
    num_final: int
    """Leading ids that are no drafts."""
    num_candidates: int
    """Likeliest ids per row; 0: no rows, the KV alone."""
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


@dataclass(slots=True, eq=False)
class Ticket:
    """A request under way."""

    output: Output
    logits_bytes: int
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
        self._tickets: deque[Ticket] = deque()
        self.num_bytes = 0
        """Logits held now, at most."""

    def submit(self, request: Request) -> Ticket:
        """Send a request, after waiting for room. Raises EngineError."""
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
            try:
                ticket.output.result(timeout=self._timeout_s)
                ticket.logprobs = ticket.output.outputs[0].prompt_logprobs
            except Exception as error:
                self.abort(ticket)
                raise _failed("failed a request", error) from error
            self._forget(ticket)
        return ticket.logprobs

    def abort(self, ticket: Ticket) -> None:
        """Give a request up; nothing for one that has landed. Raises EngineError."""
        if ticket.landed:
            return
        self._forget(ticket)
        try:
            ticket.output.abort()
        except Exception as error:
            raise _failed("failed to abort a request", error) from error

    def abort_all(self) -> None:
        """Give up whatever is in flight. Raises EngineError."""
        while self._tickets:
            self.abort(self._tickets[0])

    def _forget(self, ticket: Ticket) -> None:
        ticket.landed = True
        self._tickets.remove(ticket)
        self.num_bytes -= ticket.logits_bytes


def _failed(what: str, error: Exception) -> EngineError:
    """The runtime's errors have many types, a timeout among them (queue.Empty, without a text)."""
    return EngineError(f"TensorRT-LLM {what}: {type(error).__name__}: {error}")
