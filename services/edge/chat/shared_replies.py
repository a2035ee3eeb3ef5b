"""Replies to requests with an idempotency key, shared by the edges and processes of a site.

One edge at a time holds a reply and computes it; what is final is appended to a Redis as it comes.
An edge that is asked for a reply claims it: it gets what is saved and goes on from there, after the
edge that holds the reply has let go of it (not while the prompt is computed), or has been silent
for LEASE_S. So a reply is not computed twice, but for the tokens that an edge took with it when it
died, RENEW_S of them.

No chat waits for a Redis that does not answer: its edge then acts alone, as without one.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha1
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Protocol
from uuid import uuid4

import structlog

from outrider.bounds import PositiveFloat
from outrider.circuit_breaker import CircuitBreaker, CircuitBreakerPolicy
from outrider.errors import DuplicateSessionError, KeyReusedError
from outrider.redis_settings import SealedRedisConfig, needs_client, once_more
from outrider.session.types import FinishReason
from services.edge.chat.replay import ReplayLog
from services.edge.chat.resumption_table import ChatKey
from services.edge.chat.saved_reply import ReplySaver, ReplySealer
from services.edge.session.events import CancelAsked, ClientFailed, Input

if TYPE_CHECKING:
    from redis.asyncio import Redis

_log = structlog.get_logger()

LEASE_S: Final = 2.0
"""How long an edge holds a reply after it was last heard of."""
RENEW_S: Final = 0.25
"""Interval at which an edge saves what is new of the replies that it holds, and says that it is
alive."""
_POLL_S: Final = 0.05
"""Interval at which a reply that another edge holds is claimed again."""
_MAX_SAVES: Final = 64
"""Replies saved in one round trip, so that the event loop has its turn between."""
_MAX_CLAIMS: Final = 1024
"""Most requests that wait for their replies; further ones are computed here, as without a Redis."""
_CONNECT_S: Final = 1.0
"""Longest time that a connection takes to be made, over TLS too. Nobody waits for so long."""

SCRIPT: Final = """
-- KEYS: a reply. ARGV: what is done, edge, lease in s, seconds to keep, the request's hash; to
-- save: index of the first piece, 1 if the reply is whole, pieces.
local t = redis.call('TIME')
local now = tonumber(t[1]) + tonumber(t[2]) / 1000000
local what, edge, keep = ARGV[1], ARGV[2], ARGV[4]
local state = redis.call('HMGET', KEYS[1], 'holder', 'until', 'request', 'whole', 'wanted', 'by')
local holder, whole, wanted = state[1], state[4], state[5]
if wanted == 'moved' and tonumber(state[6] or now) < now then wanted = false end
local is_held = holder and holder ~= '' and tonumber(state[2]) > now
local is_ours = holder == edge
local function hold(by)
  redis.call('HSET', KEYS[1], 'holder', by, 'until', string.format('%.3f', now + tonumber(ARGV[3])),
    'request', ARGV[5])
  redis.call('EXPIRE', KEYS[1], keep)
end
if what == 'claim' then
  if state[3] and state[3] ~= ARGV[5] then return {'reused'} end
  if is_held and not is_ours then
    if wanted ~= 'cancelled' then
      local by = string.format('%.3f', now + tonumber(ARGV[3]) / 2)
      redis.call('HSET', KEYS[1], 'wanted', 'moved', 'by', by)
    end
    return {'held'}
  end
  if not whole then
    hold(edge)
    redis.call('HDEL', KEYS[1], 'wanted')
  end
  local answer = {'claimed'}
  while true do
    local piece = redis.call('HGET', KEYS[1], #answer - 1)
    if not piece then return answer end
    answer[#answer + 1] = piece
  end
elseif what == 'cancel' then
  if not holder or whole or (is_held and is_ours) then return {'ended'} end
  if is_held then
    redis.call('HSET', KEYS[1], 'wanted', 'cancelled')
  else
    redis.call('DEL', KEYS[1])
  end
  return {'cancelled'}
end
local first = tonumber(ARGV[6])
if holder and not is_ours then return {'taken'} end
if what == 'drop' or (what == 'release' and #ARGV < 8 and not redis.call('HGET', KEYS[1], 0)) then
  redis.call('DEL', KEYS[1])
  return {'kept'}
end
if first > 0 then
  if not holder then return {'lost'} end
elseif #ARGV > 7 then
  -- From its beginning on; until then, what another edge saved of it before it died stays.
  redis.call('DEL', KEYS[1])
end
for at = 8, #ARGV do redis.call('HSET', KEYS[1], first + at - 8, ARGV[at]) end
if ARGV[7] == '1' then redis.call('HSET', KEYS[1], 'whole', '1') end
hold(what == 'release' and '' or edge)
return {wanted or 'kept'}
"""


@dataclass(frozen=True, slots=True)
class SharedRepliesConfig(SealedRedisConfig):
    """The Redis through which the edges of a site answer a request with an idempotency key once:
    table `[edge.shared_replies]`."""

    TABLE = "shared_replies"

    url: str = ""
    """redis://HOST:PORT/DATABASE, or rediss:// over TLS; empty: each process of an edge has its own
    replies."""
    timeout_ms: PositiveFloat = 100.0
    """Longest wait for an answer of that Redis; then this edge acts alone."""


class HeldChat(Protocol):
    """A chat under way at this edge."""

    @property
    def is_placed(self) -> bool:
        """Whether a region has, or had, its session."""
        ...

    def feed(self, item: Input) -> None:
        """It ends, for this reason."""
        ...


Claimed = Callable[[ReplayLog | KeyReusedError | None], None]
"""Takes the log of what was saved, which may be empty; that the key is another request's; or None:
this edge acts alone."""


@dataclass(slots=True, eq=False)
class Claim:
    """A request that waits for its reply."""

    name: bytes
    request: bytes
    claimed: Claimed | None
    """None: it was answered, or given up."""
    timer: asyncio.TimerHandle | None = None
    """When Redis has not answered for too long."""

    def give_up(self) -> None:
        """Nobody waits any more."""
        self.claimed = None
        if self.timer is not None:
            self.timer.cancel()

    def answer(self, found: ReplayLog | KeyReusedError | None) -> None:
        """Tell who waits."""
        claimed = self.claimed
        self.give_up()
        if claimed is not None:
            claimed(found)


@dataclass(slots=True, eq=False)
class _Held:
    """A reply that this edge computes, or computed and has yet to let go of."""

    key: ChatKey
    name: bytes
    request: bytes
    saver: ReplySaver
    chat: HeldChat | None
    """None: it has ended."""
    due_at: float
    """Loop time at which it is saved next."""
    placed_by: float
    """Loop time at which a region should have its session; then another edge may try."""
    is_dropped: bool = False
    """It was given up for good."""
    is_told_again: bool = False
    """Its end was told once more, as Redis did not answer the first time."""


class SharedReplies:
    """An edge's way to that Redis. Its methods are called in the event loop, and never block."""

    def __init__(
        self,
        client: Redis,
        sealer: ReplySealer,
        *,
        timeout_s: float,
        window_s: float,
        breaker: CircuitBreakerPolicy | None = None,
    ) -> None:
        """Owns `client`. `window_s`: how long a reply is kept that nobody computes."""
        self._client = client
        self._sealer = sealer
        self._timeout_s = timeout_s
        self._arguments = (uuid4().hex, LEASE_S, max(1, round(window_s)))
        self._script_name = sha1(SCRIPT.encode(), usedforsecurity=False).hexdigest()
        self._breaker = CircuitBreaker(breaker or CircuitBreakerPolicy())
        self._connecting: asyncio.Task[None] | None = None
        self._claims: list[Claim] = []
        self._held: OrderedDict[ChatKey, _Held] = OrderedDict()
        """The next one to be saved first."""
        self._ended: list[_Held] = []
        self._has_news = asyncio.Event()
        self._is_closing = False
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._run())

    def claim(self, key: ChatKey, digest: bytes, claimed: Claimed) -> Claim:
        """Ask for a reply, to compute the rest of it here. `claimed` is called once, in another
        turn of the event loop, unless the claim is given up."""
        name = self._sealer.name(key)
        claim = Claim(name, self._sealer.request(name, digest), claimed)
        if len(self._claims) >= _MAX_CLAIMS:
            self._loop.call_soon(claim.answer, None)
        else:
            self._wait(claim)
            self._has_news.set()
        return claim

    def _wait(self, claim: Claim, pause_s: float = 0.0) -> None:
        """Ask for it in a round that begins within `pause_s`. One that is under way may end only
        when Redis has not answered for as long as this claim may wait."""
        claim.timer = self._loop.call_later(pause_s + self._timeout_s, claim.answer, None)
        self._claims.append(claim)

    def begun(self, key: ChatKey, digest: bytes, log: ReplayLog, chat: HeldChat) -> None:
        """This edge computes a reply from now on."""
        name = self._sealer.name(key)
        request = self._sealer.request(name, digest)
        now = self._loop.time()
        self._held[key] = _Held(
            *(key, name, request, ReplySaver(log), chat),
            due_at=now + RENEW_S,
            placed_by=now + LEASE_S,
        )
        self._has_news.set()

    def ended(self, key: ChatKey) -> None:
        """It does so no more: the reply is whole, or another edge may continue it."""
        held = self._held.pop(key, None)
        if held is None:
            return
        held.chat = None
        log = held.saver.log
        done = log.done
        held.is_dropped = done is not None and done.finish_reason is FinishReason.CANCELLED
        self._ended.append(held)
        self._has_news.set()

    async def cancel(self, keys: Sequence[ChatKey]) -> int:
        """End replies that other edges hold, or that none does, for good. Returns how many were
        under way, as far as is known."""
        if not self._breaker.allows(time.monotonic()):
            return 0
        calls = [(self._sealer.name(key), ("cancel", *self._arguments, b"")) for key in keys]
        return sum(_word(it) == "cancelled" for it in await self._ask(calls) or ())

    async def close(self) -> None:
        """Let go of what is held, and end. No chat is under way any more."""
        self._is_closing = True
        self._has_news.set()
        await asyncio.gather(self._task, return_exceptions=True)  # a round under way ends
        while self._ended:
            await self._round()
        if (connecting := self._connecting) is not None:
            connecting.cancel()
            await asyncio.gather(connecting, return_exceptions=True)
        await self._client.aclose()

    async def _run(self) -> None:
        while not self._is_closing:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(self._next_round_at()):
                    await self._has_news.wait()
            self._has_news.clear()
            await self._round()

    def _next_round_at(self) -> float | None:
        first = next(iter(self._held.values()), None)
        times = [] if first is None else [first.due_at]
        if self._claims:
            times.append(self._loop.time() + _POLL_S)
        return min(times, default=None)

    def _due(self) -> Iterator[_Held]:
        """Some of those that are to be saved now."""
        now = self._loop.time()
        for key, held in list(islice(self._held.items(), _MAX_SAVES)):
            if held.due_at > now:
                return
            held.due_at = now + RENEW_S
            self._held.move_to_end(key)
            yield held

    async def _round(self) -> None:
        """Tell and ask what there is to tell and to ask."""
        ended, self._ended = self._ended[:_MAX_SAVES], self._ended[_MAX_SAVES:]
        if self._ended:
            self._has_news.set()
        claims, self._claims = [it for it in self._claims if it.claimed is not None], []
        due = list(self._due())
        if not (ended or claims or due):
            return
        if not self._breaker.allows(time.monotonic()):
            # Nothing is sealed for nobody. What is new of replies is saved later, if at all.
            for claim in claims:
                claim.answer(None)
            return
        saves = [(it, self._save(it)) for it in (*ended, *due)]
        calls: list[tuple[bytes, tuple[Any, ...]]] = [
            *((it.name, arguments) for it, arguments in saves),
            *((it.name, ("claim", *self._arguments, it.request)) for it in claims),
        ]
        try:
            answers = await self._ask(calls)
        except Exception:
            # A defect here ends no chat: they go on alone.
            _log.exception("shared_replies_failed")
            answers = None
        for (it, _), answer in zip(saves, answers or [None] * len(saves), strict=False):
            self._saved(it, None if answer is None else _word(answer))
        found = answers[len(saves) :] if answers else [None] * len(claims)
        for claim, answer in zip(claims, found, strict=True):
            self._answer(claim, answer)

    def _save(self, held: _Held) -> tuple[object, ...]:
        """Arguments of the script."""
        saver = held.saver
        first = saver.num_saved
        log = saver.log
        has_begun = bool(log.upto) or log.done is not None
        frames = saver.more() if has_begun and not held.is_dropped else []
        pieces = [self._sealer.seal(held.name, first + n, it) for n, it in enumerate(frames)]
        what = "drop" if held.is_dropped else "save" if held.chat is not None else "release"
        is_whole = "1" if saver.is_whole else "0"
        return (what, *self._arguments, held.request, first, is_whole, *pieces)

    def _saved(self, held: _Held, answer: str | None) -> None:
        chat = held.chat
        if answer in (None, "lost"):
            held.saver = ReplySaver(held.saver.log)  # all of it again
            if chat is None and not held.is_told_again:
                held.is_told_again = True
                self._ended.append(held)
                self._has_news.set()
        elif answer == "taken":
            # While this edge was cut off; its own client has what it computes.
            if self._held.get(held.key) is held:
                del self._held[held.key]
        elif chat is not None and answer == "moved":
            is_begun = chat.is_placed or self._loop.time() < held.placed_by
            if is_begun and not held.saver.log.upto:
                return  # the prompt is being computed: the other edge would have it computed again
            error = DuplicateSessionError("another edge continues this reply; read that one")
            chat.feed(ClientFailed(error))
        elif chat is not None and answer == "cancelled":
            chat.feed(CancelAsked())

    def _answer(self, claim: Claim, answer: Any) -> None:
        word = None if answer is None else _word(answer)
        if claim.claimed is None:
            return  # it was given up, or waited for too long
        if word == "held":
            if claim.timer is not None:
                claim.timer.cancel()
            self._wait(claim, _POLL_S)
        elif word == "reused":
            claim.answer(
                KeyReusedError(
                    "this idempotency key was used for another request; take a new key for every "
                    "request"
                )
            )
        else:
            claim.answer(None if word is None else self._sealer.log(claim.name, answer[1:]))

    async def _ask(self, calls: Sequence[tuple[bytes, tuple[Any, ...]]]) -> list[Any] | None:
        """The script's answer to each call, in one round trip; None if Redis gives none. The
        breaker allowed it."""
        import redis

        try:
            async with asyncio.timeout(self._timeout_s):
                await self._connected()
                answers = await self._run_script(calls)
                if any(isinstance(it, redis.exceptions.NoScriptError) for it in answers):
                    # It was started anew: it knows no script, and none was run.
                    await self._client.script_load(SCRIPT)
                    answers = await self._run_script(calls)
            for answer in answers:
                if isinstance(answer, Exception):
                    raise answer
        except (redis.RedisError, OSError, TimeoutError, RuntimeError) as error:
            self._failed(error)
            return None
        if self._breaker.is_open:
            _log.info("shared_replies_back", effect="replies are shared again")
        self._breaker.succeeded()
        return answers

    async def _connected(self) -> None:
        """Return once there is a connection. It takes several round trips, and over TLS some time:
        if the wait for it is cancelled, it is made nevertheless, and found by a later call."""
        if self._connecting is None:
            self._connecting = self._loop.create_task(self._connect())
            self._connecting.add_done_callback(self._connect_ended)
        await asyncio.shield(self._connecting)

    async def _connect(self) -> None:
        pool: Any = self._client.connection_pool
        async with asyncio.timeout(max(self._timeout_s, _CONNECT_S)):
            await pool.release(await pool.get_connection())

    def _connect_ended(self, connecting: asyncio.Task[None]) -> None:
        self._connecting = None
        if not connecting.cancelled():
            connecting.exception()  # whoever waited for it was told

    async def _run_script(self, calls: Sequence[tuple[bytes, tuple[Any, ...]]]) -> list[Any]:
        """An answer or an error for each."""
        async with self._client.pipeline(transaction=False) as pipe:
            for name, arguments in calls:
                pipe.evalsha(self._script_name, 1, name, *arguments)
            answers: list[Any] = await pipe.execute(raise_on_error=False)
            return answers

    def _failed(self, error: BaseException) -> None:
        was_open = self._breaker.is_open
        self._breaker.failed(time.monotonic())
        if self._breaker.is_open and not was_open:
            _log.warning(
                "shared_replies_unreachable",
                reason=type(error).__name__,
                effect="a request that is sent to two edges is computed by both",
            )


def _word(answer: list[bytes]) -> str:
    return answer[0].decode()


def open_shared_replies(config: SharedRepliesConfig, window_s: float) -> SharedReplies | None:
    """None without `shared_replies.url`, or if no reply is kept for a client that comes back
    (`window_s` is 0). Does not connect: whether Redis answers shows later. Raises ConfigError."""
    if not (config.url and window_s):
        return None
    try:
        from redis.asyncio import Redis
    except ImportError as error:
        raise needs_client("shared_replies.url") from error
    sealer = ReplySealer(config.sealing_key())
    address, timeout_s = config.address(), config.timeout_ms / 1000
    options = address.options(timeout_s, max(timeout_s, _CONNECT_S))
    client = Redis.from_url(address.url, retry=once_more(), **options)
    return SharedReplies(client, sealer, timeout_s=timeout_s, window_s=window_s)
