"""Limits that the edges of a region share through Redis.

One thread talks to Redis. What a tenant may still use is one hash there, changed by one script, so
that no two edges take the same. The number of running chats of each edge is a second hash, whose
entries expire: an edge that was killed holds nothing for longer than LEASE_S.

No chat waits for Redis longer than a moment (`timeout_s`). After that, and while a circuit breaker
is open, each edge decides for itself, which is logged. Usage during that time is not added later.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b, sha1
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import structlog

from outrider.circuit_breaker import CircuitBreaker, CircuitBreakerPolicy
from outrider.redis_settings import needs_client
from services.edge.access.config import SharedLimitsConfig
from services.edge.access.limits import RATES, Limited, TenantLimits

if TYPE_CHECKING:
    import redis

_log = structlog.get_logger()

LEASE_S: Final = 10.0
"""How long an edge's count of running chats is valid."""
_RENEW_S: Final = 3.0
_FLUSH_S: Final = 0.1
"""Interval at which tokens of replies and ends of chats are sent."""
_MAX_QUEUED: Final = 1024
"""Most requests that wait; this edge decides further ones by itself."""
_BATCH: Final = 64
"""Asks in one round trip."""
_KEEP_S: Final = 120
"""How long the usage of a tenant without chats is kept: its buckets are full again by then. Reply
buckets below zero are kept until they are full, for a day at most."""

SCRIPT: Final = """
-- KEYS: buckets, sessions of a tenant. ARGV: 1 to decide or 0 to note, edge, its sessions,
-- max sessions, lease in s, seconds to keep; then limit and amount of each rate.
local t = redis.call('TIME')
local now = tonumber(t[1]) + tonumber(t[2]) / 1000000
local decides = ARGV[1] == '1'
local state = redis.call('HMGET', KEYS[1], '0', '1', '2', 'at')
local at = tonumber(state[4]) or now
local levels = {}
local refused, wait = -1, 0
for i = 0, 2 do
  local limit, amount = tonumber(ARGV[7 + 2 * i]), tonumber(ARGV[8 + 2 * i])
  local level = limit
  if state[i + 1] then
    level = math.min(limit, tonumber(state[i + 1]) + math.max(0, now - at) * limit / 60)
  end
  levels[i] = level
  local least = amount
  if i == 2 then least = math.min(1, limit) end
  if decides and refused < 0 and limit > 0 and level < least then
    refused = i
    wait = (least - level) * 60 / limit
  end
end
if tonumber(ARGV[4]) > 0 then
  local total = tonumber(ARGV[3])
  local others = redis.call('HGETALL', KEYS[2])
  for i = 1, #others, 2 do
    local count, expires = string.match(others[i + 1], '(%d+):(%d+)')
    if tonumber(expires) < now then
      redis.call('HDEL', KEYS[2], others[i])
    elseif others[i] ~= ARGV[2] then
      total = total + tonumber(count)
    end
  end
  if decides and refused < 0 and total > tonumber(ARGV[4]) then refused = 3 end
  if refused < 0 then
    if tonumber(ARGV[3]) > 0 then
      local expires = string.format('%d', now + tonumber(ARGV[5]))
      redis.call('HSET', KEYS[2], ARGV[2], ARGV[3] .. ':' .. expires)
      redis.call('EXPIRE', KEYS[2], ARGV[6])
    else
      redis.call('HDEL', KEYS[2], ARGV[2])
    end
  end
end
local keep = tonumber(ARGV[6])
for i = 0, 2 do
  local limit = tonumber(ARGV[7 + 2 * i])
  if limit > 0 then
    if refused < 0 then levels[i] = levels[i] - tonumber(ARGV[8 + 2 * i]) end
    keep = math.max(keep, (limit - levels[i]) * 60 / limit)
    redis.call('HSET', KEYS[1], tostring(i), string.format('%.6f', levels[i]))
  else
    redis.call('HDEL', KEYS[1], tostring(i))
  end
end
redis.call('HSET', KEYS[1], 'at', string.format('%.6f', now))
redis.call('EXPIRE', KEYS[1], math.ceil(math.min(keep, 86400)))
return {refused, string.format('%.6f', wait), string.format('%.6f', levels[0]),
  string.format('%.6f', levels[1]), string.format('%.6f', levels[2])}
"""
_LIMITED: Final = (*RATES, Limited.SESSIONS)
"""By the numbers that the script has for them."""


@dataclass(frozen=True, slots=True)
class SharedAsk:
    """A request to use something, or a report of what was used."""

    tenant: str
    limits: TenantLimits
    num_sessions: int
    """Chats of the tenant at this edge, with the one that is asked for."""
    num_requests: int = 0
    """0: this is what was used; it cannot be refused."""
    input_tokens: int = 0
    output_tokens: int = 0

    @property
    def arguments(self) -> tuple[object, ...]:
        """Arguments of the script after the edge's name."""
        amounts = (self.num_requests, self.input_tokens, self.output_tokens)
        rates = [
            value
            for what, amount in zip(RATES, amounts, strict=True)
            for value in (self.limits.per_minute(what), amount)
        ]
        return (self.num_sessions, self.limits.max_sessions, LEASE_S, _KEEP_S, *rates)


@dataclass(frozen=True, slots=True)
class SharedAnswer:
    """Redis's answer."""

    refused: Limited | None
    """The limit that refuses the chat; None: none does."""
    wait_s: float
    levels: Mapping[Limited, float]
    """Levels left for all edges together."""


def answer_of(reply: list[Any], limits: TenantLimits) -> SharedAnswer:
    """Parse the script's result."""
    number, wait_s, *levels = reply
    found = {
        what: float(level)
        for what, level in zip(RATES, levels, strict=True)
        if limits.per_minute(what)
    }
    return SharedAnswer(None if number < 0 else _LIMITED[number], float(wait_s), found)


Answered = Callable[[SharedAnswer | None], None]


class _Waiting:
    """An ask without an answer."""

    __slots__ = ("answered", "ask", "timer")

    def __init__(self, ask: SharedAsk, answered: Answered) -> None:
        self.ask = ask
        self.answered: Answered | None = answered
        """None: it was decided, perhaps without an answer."""
        self.timer: asyncio.TimerHandle | None = None


class SharedLimits:
    """An edge's way to Redis. Its methods are called in the event loop, and never block."""

    def __init__(
        self,
        client: redis.Redis,
        *,
        timeout_s: float,
        breaker: CircuitBreakerPolicy | None = None,
    ) -> None:
        """Owns `client`."""
        self._loop = asyncio.get_running_loop()
        self._client = client
        self._timeout_s = timeout_s
        self._edge = uuid4().hex
        self._script_name = sha1(SCRIPT.encode(), usedforsecurity=False).hexdigest()
        self._breaker = CircuitBreaker(breaker or CircuitBreakerPolicy())
        self._changed = threading.Condition()
        self._asks: deque[_Waiting] = deque()
        self._notes: dict[str, SharedAsk] = {}
        """Usage of tenants since the last report; only for the loop."""
        self._held: dict[str, SharedAsk] = {}
        """Tenants with running chats, reported again before the entry expires; only for the
        loop."""
        self._noted: dict[str, SharedAsk] = {}
        """Reports for the thread to send."""
        self._is_closed = False
        self._flushing = self._loop.create_task(self._flush())
        self._thread = threading.Thread(target=self._run, name="shared-limits", daemon=True)
        self._thread.start()

    def ask(self, ask: SharedAsk, answered: Answered) -> None:
        """Ask for a chat; `answered` is called once: with None if this edge has to decide."""
        with self._changed:
            is_allowed = len(self._asks) < _MAX_QUEUED and self._breaker.allows(time.monotonic())
        self._hold(ask.tenant, ask.limits, ask.num_sessions)
        if not is_allowed or self._is_closed:
            answered(None)
            return
        waiting = _Waiting(ask, answered)
        waiting.timer = self._loop.call_later(self._timeout_s, self._answer, waiting, None)
        with self._changed:
            self._asks.append(waiting)
            self._changed.notify()

    def charge(
        self, tenant: str, limits: TenantLimits, input_tokens: int, output_tokens: int
    ) -> None:
        """A tenant has used so much."""
        note = self._note(tenant, limits)
        self._notes[tenant] = replace(
            note,
            input_tokens=note.input_tokens + input_tokens,
            output_tokens=note.output_tokens + output_tokens,
        )

    def sessions(self, tenant: str, limits: TenantLimits, num_sessions: int) -> None:
        """A tenant has so many chats under way here."""
        if limits.max_sessions:
            self._notes[tenant] = self._note(tenant, limits)
        self._hold(tenant, limits, num_sessions)

    async def close(self) -> None:
        """Send the remaining reports, and end."""
        self._flushing.cancel()
        await asyncio.gather(self._flushing, return_exceptions=True)
        self._hand_over()
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        await asyncio.to_thread(self._thread.join)
        self._client.close()

    def _hold(self, tenant: str, limits: TenantLimits, num_sessions: int) -> None:
        """Note the number of a tenant's running chats here, which is reported repeatedly until it
        is 0. A report that already waits is updated, for it may reach Redis after the present
        request."""
        if limits.max_sessions and num_sessions:
            self._held[tenant] = SharedAsk(tenant, limits, num_sessions)
        else:
            self._held.pop(tenant, None)
        if tenant in self._notes:
            note = self._notes[tenant]
            self._notes[tenant] = replace(note, limits=limits, num_sessions=num_sessions)

    def _note(self, tenant: str, limits: TenantLimits) -> SharedAsk:
        held = self._held.get(tenant)
        num_sessions = held.num_sessions if held else 0
        return self._notes.get(tenant) or SharedAsk(tenant, limits, num_sessions)

    def _answer(self, waiting: _Waiting, answer: SharedAnswer | None) -> None:
        answered, waiting.answered = waiting.answered, None
        if waiting.timer is not None:
            waiting.timer.cancel()
        if answered is not None:
            answered(answer)

    async def _flush(self) -> None:
        renewed_at = self._loop.time()
        while True:
            await asyncio.sleep(_FLUSH_S)
            now = self._loop.time()
            if now - renewed_at >= _RENEW_S:
                renewed_at = now
                self._notes = {**self._held, **self._notes}
            self._hand_over()

    def _hand_over(self) -> None:
        if not self._notes:
            return
        notes, self._notes = self._notes, {}
        with self._changed:
            if self._breaker.is_open:
                return  # it is not added later
            for tenant, note in notes.items():
                before = self._noted.get(tenant)
                self._noted[tenant] = note if before is None else _sum(before, note)
            self._changed.notify()

    # Everything below runs in the thread.

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._asks or self._noted or self._is_closed)
                notes, self._noted = list(self._noted.values()), {}
                asks = [self._asks.popleft() for _ in range(min(_BATCH, len(self._asks)))]
                if self._is_closed and not (notes or asks):
                    return
            # What was used is told before something is asked for.
            replies = self._tell([*notes, *(waiting.ask for waiting in asks)])
            answers: list[SharedAnswer | None] = [None] * len(asks)
            if replies is not None:
                answers = [
                    answer_of(reply, waiting.ask.limits)
                    for reply, waiting in zip(replies[len(notes) :], asks, strict=True)
                ]
            for waiting, answer in zip(asks, answers, strict=True):
                if not self._loop.is_closed():
                    self._loop.call_soon_threadsafe(self._answer, waiting, answer)

    def _tell(self, asks: list[SharedAsk]) -> list[Any] | None:
        import redis

        try:
            replies = self._run_script(asks)
            if any(isinstance(reply, redis.exceptions.NoScriptError) for reply in replies):
                # It was started anew: then it knows none of them, and none was run.
                self._client.script_load(SCRIPT)
                replies = self._run_script(asks)
            for reply in replies:
                if isinstance(reply, redis.RedisError):
                    raise reply
        except (redis.RedisError, OSError) as error:
            self._failed(error)
            return None
        with self._changed:
            was_open = self._breaker.is_open
            self._breaker.succeeded()
        if was_open:
            _log.info("shared_limits_back", effect="limits are held over all edges again")
        return replies

    def _run_script(self, asks: list[SharedAsk]) -> list[Any]:
        """A reply or an error for each."""
        with self._client.pipeline(transaction=False) as pipe:
            for ask in asks:
                decides = "1" if ask.num_requests else "0"
                arguments = (decides, self._edge, *ask.arguments)
                pipe.evalsha(self._script_name, 2, *_keys(ask.tenant), *map(str, arguments))
            return pipe.execute(raise_on_error=False)

    def _failed(self, error: BaseException) -> None:
        with self._changed:
            was_open = self._breaker.is_open
            self._breaker.failed(time.monotonic())
            is_open = self._breaker.is_open
        if is_open and not was_open:
            _log.warning(
                "shared_limits_unreachable",
                reason=type(error).__name__,
                effect="each edge holds the limits by itself",
            )


def _keys(tenant: str) -> list[str]:
    """The tenant's name is hashed: it may hold what keys of a cluster's slots are made of."""
    name = blake2b(tenant.encode(), digest_size=16).hexdigest()
    return [f"outrider:limits:{{{name}}}:rates", f"outrider:limits:{{{name}}}:sessions"]


def _sum(before: SharedAsk, note: SharedAsk) -> SharedAsk:
    return replace(
        note,
        input_tokens=before.input_tokens + note.input_tokens,
        output_tokens=before.output_tokens + note.output_tokens,
    )


def open_shared_limits(config: SharedLimitsConfig) -> SharedLimits | None:
    """None without `shared_limits.url`. Does not connect: whether Redis answers shows later. Raises
    ConfigError."""
    if not config.url:
        return None
    try:
        from outrider.tokenization.shared_cache.redis_cache import connect
    except ImportError as error:
        raise needs_client("shared_limits.url") from error
    timeout_s = config.timeout_ms / 1000
    client = connect(config.address(), timeout_s, num_connections=2)
    return SharedLimits(client, timeout_s=timeout_s)
