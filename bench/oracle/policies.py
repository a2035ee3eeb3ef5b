"""Others' routing policies, written anew from descriptions; no code of theirs is used.

All get what our router gets and, where they would guess, more than they have: exact cache events in
place of a tree of what they sent, a count of what they sent since a replica's last report, and
costs of prompt tokens in milliseconds as replicas report them. Parameters are the sources' defaults
or examples. Sources:

- wait-and-widen: NVIDIA NVCF's Stargate, `docs/load-balancer-configuration.md` of its
  `src/libraries/rust/stargate` (commit 002ee39f): TTFT = round trip + queued tokens / input rate +
  prompt / input rate; buckets of 20 ms; the better of two sampled in unlocked buckets; a later
  bucket unlocks after a quarter of the gap has been waited; a cache affinity group of two replicas
  by consistent hashing, preferred for 200 ms with a tenth of the prefill.
- GORGO: Ricci Toniolo, Dinesh and Thorstenson, arXiv 2602.11688, and their repository's notes: the
  least sum of round trip, prefill of the uncached part and prefill of what is queued, each weighted
  by 1, at which it is a time.
- SkyWalker: Xia et al., EuroSys 2026, arXiv 2505.24095: a request is pushed only to a replica
  without pending requests, in its own region first, among them to the one with the longest cached
  prefix if that is at least half of the prompt, else to the least loaded; other regions are asked
  when no local one is available; else it waits at the load balancer.
- llm-d's scorers: the router's prefix, queue and KV-utilisation scorers, weighted 2 : 2 : 1, and
  its utilization detector (queue / 5), which here sends a request to the nearest other region while
  the own one is saturated, as a picker serves one cluster.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from random import Random

from bench.scale.demand import BLOCK_TOKENS, Ask
from bench.scale.regions import Region
from bench.scale.routers import Report, Site
from outrider.errors import NoReplicaError, OutriderError
from services.router.fleet.replica import ReplicaLoad
from services.router.prefix_index.kv_events import BlocksStored

_RETRY_S = 0.01
"""Time after which those that wait are looked at again, at most so often."""
_MAX_RETRIED = 32
"""Of those that wait, how many, the oldest ones, are looked at in vain before the rest waits on."""
_IDLE = ReplicaLoad(fixed_ms=10.0, row_ms=1.0, max_sessions=16)
"""Taken of a replica that has not reported yet."""


class Seen:
    """A replica as a router sees it: its last report, and what was sent since."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.load = _IDLE
        self.blocks: set[bytes] = set()
        self._sent: deque[tuple[float, int, int]] = deque()
        """Requests that its report cannot include: when each was sent, its number and tokens."""
        self.sent_tokens = 0

    def reported(self, report: Report, now: float) -> None:
        """A report came in: it includes what was sent a round trip ago."""
        self.load = report.load
        for event in report.blocks:
            if isinstance(event, BlocksStored):
                self.blocks.update(event.blocks)
            else:
                self.blocks.difference_update(event.blocks)
        while self._sent and self._sent[0][0] <= now - self.site.rtt_ms / 1e3:
            self.sent_tokens -= self._sent.popleft()[2]

    def sent(self, ask: Ask, now: float) -> None:
        """A request was sent; its blocks will be there when another one comes."""
        tokens = self.uncached(ask)
        self._sent.append((now, ask.number, tokens))
        self.sent_tokens += tokens
        self.blocks.update(ask.hashes)

    def uncached(self, ask: Ask) -> int:
        """Tokens of its prompt that are not known to be cached."""
        count = 0
        for block in ask.hashes:
            if block not in self.blocks:
                break
            count += 1
        return max(1, len(ask.prompt) - BLOCK_TOKENS * count)

    @property
    def num_sessions(self) -> int:
        """Running and queued there, and sent since."""
        return self.load.running_sessions + self.load.queued_sessions + len(self._sent)

    @property
    def num_queued(self) -> int:
        """Those that have no place."""
        return max(self.load.queued_sessions, self.num_sessions - self.load.max_sessions)

    @property
    def queued_tokens(self) -> int:
        """Prompt tokens ahead."""
        return self.load.queued_prompt_tokens + self.sent_tokens

    def prefill_ms(self, tokens: float) -> float:
        """Time of so many prompt tokens, in calls of 256."""
        return tokens * (self.load.row_ms + self.load.fixed_ms / 256)


class Policy(ABC):
    """The router of one region (bench.scale.routers.Router). Subclasses choose."""

    def __init__(self, own: Region, regions: Sequence[Region], seed: int) -> None:
        self.own = own.name
        self.random = Random(seed)
        self.seen: dict[str, Seen] = {}
        self._waiting: dict[int, Ask] = {}
        self._looked_at = 0.0

    @abstractmethod
    def choose(self, ask: Ask, now: float) -> Seen | None:
        """The replica of a request; None: it waits. There is at least one."""

    def connect(self, site: Site, now: float) -> None:
        self.seen[site.name] = Seen(site)

    def lose(self, name: str, now: float) -> None:
        self.seen.pop(name, None)

    def report(self, reports: Sequence[Report], now: float) -> None:
        for report in reports:
            if report.name in self.seen:
                self.seen[report.name].reported(report, now)

    def place(self, ask: Ask, now: float) -> str | None:
        if not self.seen:
            raise NoReplicaError("every replica is down")
        found = self._try(ask, now)
        if found is None:
            self._waiting[ask.number] = ask
        return found

    def wake(self, now: float) -> Iterator[tuple[Ask, str | OutriderError]]:
        if not self._waiting or now - self._looked_at < _RETRY_S:
            return
        self._looked_at = now
        if not any(it.num_sessions < it.load.max_sessions for it in self.seen.values()):
            return
        num_failed = 0
        for ask in list(self._waiting.values()):
            found = self._try(ask, now)
            if found is None:
                if self.is_first_come:
                    return
                num_failed += 1
                if num_failed >= _MAX_RETRIED:
                    return
                continue
            del self._waiting[ask.number]
            yield ask, found

    is_first_come = True
    """Whether nobody who waits goes before those who came earlier."""

    def release(self, ask: Ask, now: float) -> None:
        self._waiting.pop(ask.number, None)

    def _try(self, ask: Ask, now: float) -> str | None:
        if self.is_first_come and self._waiting and ask.number not in self._waiting:
            return None
        found = self.choose(ask, now)
        if found is None:
            return None
        found.sent(ask, now)
        return found.site.name


class WaitAndWiden(Policy):
    """Stargate's."""

    is_first_come = False
    bucket_ms = 20.0
    unlock_factor = 0.25
    num_sampled = 2
    group_size = 2
    affinity_wait_ms = 200.0
    affinity_scale = 0.1
    num_shared_blocks = 15
    """What stands for the affinity key: the client names its shared beginning."""

    def __init__(self, own: Region, regions: Sequence[Region], seed: int) -> None:
        super().__init__(own, regions, seed)
        self._groups: dict[bytes, list[str]] = {}

    def choose(self, ask: Ask, now: float) -> Seen | None:
        waited_ms = (now - ask.at) * 1e3
        group = [self.seen[name] for name in self._group(ask) if name in self.seen]
        found = self._select(group, ask, self.affinity_scale, waited_ms)
        if found is None and waited_ms >= self.affinity_wait_ms:
            everyone = list(self.seen.values())
            found = self._select(everyone, ask, 1.0, waited_ms - self.affinity_wait_ms)
        return found

    def _group(self, ask: Ask) -> list[str]:
        """The replicas that come first for this beginning, by highest random weight."""
        key = ask.hashes[min(self.num_shared_blocks, len(ask.hashes)) - 1]
        if key not in self._groups:
            ordered = sorted(
                self.seen, key=lambda name: hashlib.blake2b(key + name.encode()).digest()
            )
            self._groups[key] = ordered[: self.group_size]
        return self._groups[key]

    def _select(
        self, among: Sequence[Seen], ask: Ask, scale: float, waited_ms: float
    ) -> Seen | None:
        rated = sorted(
            ((self._ttft_ms(it, ask, scale), it) for it in among), key=lambda pair: pair[0]
        )
        if not rated:
            return None
        least_ms = rated[0][0]
        opened: list[tuple[float, Seen]] = []
        for ttft_ms, it in rated:
            # A bucket begins with the first that is further than its size from the last one's.
            begin_ms = least_ms + (ttft_ms - least_ms) // self.bucket_ms * self.bucket_ms
            if (begin_ms - least_ms) * self.unlock_factor > waited_ms:
                break
            if it.num_sessions < it.load.max_sessions:
                opened.append((ttft_ms, it))
        if not opened:
            return None
        sampled = self.random.sample(opened, min(self.num_sampled, len(opened)))
        return min(sampled, key=lambda pair: pair[0])[1]

    def _ttft_ms(self, it: Seen, ask: Ask, scale: float) -> float:
        has_place = it.num_sessions < it.load.max_sessions
        queue_ms = 0.0 if has_place else it.prefill_ms(it.queued_tokens)
        return it.site.rtt_ms + queue_ms + scale * it.prefill_ms(len(ask.prompt))


class Gorgo(Policy):
    """GORGO's."""

    def choose(self, ask: Ask, now: float) -> Seen:
        return min(
            self.seen.values(),
            key=lambda it: it.site.rtt_ms + it.prefill_ms(it.uncached(ask) + it.queued_tokens),
        )


class SkyWalker(Policy):
    """SkyWalker's."""

    least_share = 0.5

    def choose(self, ask: Ask, now: float) -> Seen | None:
        free = [it for it in self.seen.values() if not it.num_queued and self._has_place(it)]
        near = [it for it in free if it.site.region == self.own]
        found = near or free
        if not found:
            return None
        best = min(found, key=lambda it: (it.uncached(ask), it.num_sessions, it.site.rtt_ms))
        if len(ask.prompt) - best.uncached(ask) >= self.least_share * len(ask.prompt):
            return best
        return min(found, key=lambda it: (it.num_sessions, it.site.rtt_ms))

    @staticmethod
    def _has_place(it: Seen) -> bool:
        return it.num_sessions < it.load.max_sessions


class Scorers(Policy):
    """llm-d's."""

    prefix_weight, queue_weight, kv_weight = 2.0, 2.0, 1.0
    queue_threshold = 5.0

    def choose(self, ask: Ask, now: float) -> Seen:
        regions: dict[str, list[Seen]] = {}
        for it in self.seen.values():
            regions.setdefault(it.site.region, []).append(it)
        pools = sorted(regions.values(), key=lambda pool: pool[0].site.rtt_ms)
        unsaturated = [pool for pool in pools if self._saturation(pool) < 1.0]
        pool = (unsaturated or pools)[0]
        queues = [it.num_queued for it in pool]
        least, most = min(queues), max(queues)

        def score(it: Seen) -> float:
            cached = 1.0 - it.uncached(ask) / len(ask.prompt)
            shortness = 1.0 - (it.num_queued - least) / (most - least) if most > least else 1.0
            free = it.load.kv_blocks_free / max(1, it.load.kv_blocks_total)
            return (
                self.prefix_weight * cached + self.queue_weight * shortness + self.kv_weight * free
            )

        scores = [score(it) for it in pool]
        best = max(scores)
        ties = [it for it, value in zip(pool, scores, strict=True) if value >= best - 1e-9]
        return self.random.choice(ties)

    def _saturation(self, pool: Sequence[Seen]) -> float:
        return sum(it.num_queued for it in pool) / len(pool) / self.queue_threshold
