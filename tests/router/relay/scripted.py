"""Replicas that compute, and edges that check every token, around a switch in virtual time."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random

from outrider.codec.tokens import TokenCodec, TokenCoder
from outrider.engine_calls import SESSIONS_IN_CALL, Crash, EngineCall, request_key
from outrider.errors import EngineError, OutriderError, UnavailableError
from outrider.session.region_wire import ids_of, put_ids
from outrider.v1 import common_pb2, inference_pb2
from outrider.wire import error_from_proto, token_block_from_proto, token_block_to_proto
from services.edge.session.continuity import ModelContinuity
from services.router.admission.policy import AdmissionPolicy
from services.router.admission.pricing import Price
from services.router.admission.tenants import TenantPolicy
from services.router.fleet.replica import ReplicaLoad
from services.router.relay.policy import FailoverPolicy
from tests.router.relay.mesh import (
    DIGEST,
    IDENTITY,
    Mesh,
    accepted,
    begun,
    cancel,
    done,
    failed,
    opening,
)

CODER = TokenCoder(DIGEST, 1000)
NAMES = ("near", "far")
SAME: Mapping[str, bytes] = dict.fromkeys(NAMES, IDENTITY)


def token(seed: int, number: int, identity: bytes = IDENTITY) -> int:
    """What a model of this identity says, whoever runs it."""
    return (seed * 7919 + number * 104729 + number * number + zlib.crc32(identity)) % 1000


def block(ids: Sequence[int]) -> common_pb2.TokenBlock:
    return token_block_to_proto(CODER.encode(ids))


def ids_in(frame: common_pb2.TokenBlock) -> list[int]:
    found = token_block_from_proto(frame)
    return list(CODER.decode(found, max_count=4096, needs_checksum=False)) if frame.count else []


@dataclass(slots=True)
class Run:
    """A session on a replica."""

    seed: int
    length: int
    reply: list[int]
    request: int = 0
    """Its key in engine calls."""
    goes_alone: bool = False
    """Whether it is alone in its calls until it has a token from here."""
    has_begun: bool = False
    has_token: bool = False
    """From this replica."""
    epoch: int = 0
    chain: list[int] = field(default_factory=list)
    """Drafts of the edge behind the reply."""


@dataclass(slots=True)
class Chat:
    """A session at its edge."""

    seed: int
    length: int
    reply: list[int] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)
    """Drafts sent in this epoch, behind the reply."""
    epoch: int = 0
    kinds: list[str] = field(default_factory=list)
    done: inference_pb2.SessionDone | None = None
    error: OutriderError | None = None
    model: ModelContinuity = field(default_factory=lambda: ModelContinuity(b"", has_tokens=False))
    """As edges keep it."""
    committed_by: list[bytes] = field(default_factory=list)
    """[n] identity of the replica that computed each token of the reply."""

    @property
    def is_over(self) -> bool:
        return self.done is not None or self.error is not None


class World:
    """One edge and some replicas."""

    def __init__(
        self,
        seed: int,
        *,
        poison: int = -1,
        prices: tuple[Price, ...] = (),
        identities: Mapping[str, bytes] = SAME,
        allows_inexact: bool = False,
        failover_policy: FailoverPolicy | None = None,
        poison_from: int = 0,
        max_running: int = 16,
        is_patient: bool = False,
    ) -> None:
        """The request of seed `poison` crashes a replica whenever token `poison_from` of its reply,
        or a later one, is computed; `identities`: what each replica computes; `max_running`:
        sessions that it computes at once, others wait there; `is_patient`: nobody is given up,
        however long replicas stay away."""
        tenants = (TenantPolicy("*", allow_inexact=allows_inexact),)
        if is_patient:
            failover_policy = FailoverPolicy(timeout_s=1e6)
        self._new_mesh = partial(
            Mesh,
            policy=AdmissionPolicy(max_wait_medium_s=1e6) if is_patient else None,
            return_s=1e6 if is_patient else 0.0,
            names=tuple(identities),
            prices=prices,
            tenants=tenants,
            failover_policy=failover_policy,
        )
        self.mesh = self._new_mesh()
        self.names = tuple(identities)
        self.identities = dict(SAME)
        """What each computes; what the router was told may be older."""
        for name, identity in identities.items():
            if identity != IDENTITY:
                self.mesh.lose(name)
                self.mesh.connect(name, identity)
            self.identities[name] = identity
        self.allows_inexact = allows_inexact
        self.edge = self.mesh.edge()
        self.random = Random(seed)
        self.poison = poison
        self.poison_from = poison_from
        self.max_running = max_running
        self.num_killed_by_poison = 0
        self.num_deaths = 0
        """Of edges and routers."""
        self.crashes: dict[str, list[Crash]] = defaultdict(list)
        """What each replica's record tells the next process."""
        self.was_alone: set[str] = set()
        """Those whose last call was for one session that has to be alone."""
        self.runs: dict[str, dict[int, Run]] = {name: {} for name in self.names}
        self.hung: set[str] = set()
        """Those that make no calls."""
        self.stopped: set[str] = set()
        """Those that say nothing at all."""
        self.chats: dict[int, Chat] = {}
        self.went_alone: dict[int, list[bool]] = defaultdict(list)
        """By seed, with each open at a replica: whether it was to be alone in its calls."""

    def open(self, number: int, seed: int, length: int) -> None:
        self.chats[number] = Chat(seed, length)
        sampling = common_pb2.Sampling(seed=seed, max_tokens=length)
        self.mesh.send(self.edge, opening(number, sampling=sampling, request_id=str(number)))

    async def lose_edge(self) -> None:
        """The edge dies, and its clients go on at another one."""
        self.num_deaths += 1
        await self.read()
        self.mesh.switch.detach_edge(self.edge, self.mesh.clock())
        self._reopen()

    async def lose_router(self) -> None:
        """The router dies; its edge goes on through another one, which knows none of its sessions.
        Replicas drop what it had there."""
        self.num_deaths += 1
        await self.read()
        old = self.mesh
        processes = {name: old.registry[name].process for name in old.streams}
        old.metrics.close()
        self.mesh = self._new_mesh(clock=old.clock, num_processes=old.num_processes)
        for name in self.names:
            self.runs[name].clear()
            self.mesh.lose(name)
            if process := processes.get(name):
                self.mesh.connect(name, self.identities[name], process, self.crashes[name])
        self._reopen()

    def _reopen(self) -> None:
        self.edge = self.mesh.edge()
        for number, chat in self.chats.items():
            if not chat.is_over:
                chat.epoch, chat.sent = 0, []
                sampling = common_pb2.Sampling(seed=chat.seed, max_tokens=chat.length)
                frame = opening(number, sampling=sampling, request_id=str(number))
                if chat.reply:
                    frame.open.resume.CopyFrom(block(chat.reply))
                    frame.open.model_identity = chat.model.identity
                self.mesh.send(self.edge, frame)

    def cancel(self, number: int) -> None:
        self.mesh.send(self.edge, cancel(number))

    def draft(self, number: int, *, right: bool) -> None:
        """The edge guesses the next tokens, in a new epoch."""
        chat = self.chats[number]
        base = len(chat.reply)
        chat.epoch += 1
        chat.sent = [token(chat.seed, base + i) for i in range(3)]
        if not right:
            chat.sent[1] = (chat.sent[1] + 1) % 1000
        drafts = inference_pb2.Draft(epoch=chat.epoch, base=base)
        put_ids(drafts, CODER, chat.sent, TokenCodec.VARINT)
        self.mesh.send(self.edge, inference_pb2.SessionUp(session=number, draft=drafts))

    async def listen(self, name: str) -> None:
        """The replica takes what was sent to it."""
        stream = self.mesh.streams.get(name)
        if stream is None:
            return
        for frame in await self.mesh.at_replica(name):
            if self.mesh.streams.get(name) != stream:
                break  # it was closed meanwhile
            kind = frame.WhichOneof("kind")
            if kind == "open":
                self._opened(name, frame.session, frame.open)
            elif kind == "cancel":
                self.runs[name].pop(frame.session, None)
            elif run := self.runs[name].get(frame.session):
                if frame.draft.base == len(run.reply):
                    run.epoch, run.chain = frame.draft.epoch, []
                    run.chain = list(ids_of(frame.draft, CODER, max_count=4096))

    async def tick(self, name: str) -> None:
        """One engine call."""
        if name in self.hung | self.stopped or name not in self.mesh.streams:
            return
        await self.listen(name)
        numbers = self._call(name)
        runs = [self.runs[name][number] for number in numbers]
        crashes = any(self._is_deadly(run) for run in runs)
        # What was told as a call began may not have left a process that crashes in it.
        is_told = not crashes or self.random.random() < 0.5
        for number, run in zip(numbers, runs, strict=True):
            if not run.has_begun:
                run.has_begun = True
                if is_told:
                    self.mesh.reply(name, begun(number))
        if crashes:
            self.num_killed_by_poison += 1
            new = frozenset(run.request for run in runs if not run.has_token)
            process = self.mesh.registry[name].process
            self.crashes[name].append(Crash(process, EngineCall(new, len(runs))))
            self.kill(name)
            return
        for number in numbers:
            self._commit(name, number)
        await self.read()

    def _call(self, name: str) -> list[int]:
        """Who is in the next call, by upstream session id: as the scheduler has it."""
        running = dict(list(self.runs[name].items())[: self.max_running])
        alone = [n for n, run in running.items() if run.goes_alone and not run.has_token]
        others = [n for n in running if n not in alone]
        if alone and not (name in self.was_alone and others):
            self.was_alone.add(name)
            return alone[:1]
        self.was_alone.discard(name)
        return others

    def _is_deadly(self, run: Run) -> bool:
        return run.seed == self.poison and len(run.reply) >= self.poison_from

    async def read(self) -> None:
        """The edge takes what was sent to it."""
        for frame in await self.mesh.at_edge(self.edge):
            self._told(self.chats[frame.session], frame)

    def kill(self, name: str, *, is_own: bool = False) -> None:
        """Its stream breaks; `is_own`: by the router's fault."""
        if name in self.mesh.streams:
            self.runs[name].clear()
            self.mesh.up[name].close()
            self.mesh.lose(name, is_own=is_own)

    def break_path(self, name: str) -> None:
        """The connection breaks, and is made again; the process lives, and drops its sessions."""
        if name in self.mesh.streams:
            process = self.mesh.registry[name].process
            self.kill(name)
            self.mesh.connect(name, self.identities[name], process, self.crashes[name])

    def restart(self, name: str, identity: bytes | None = None) -> None:
        """It is back; with an `identity`, as another model."""
        if name not in self.mesh.streams:
            self.hung.discard(name)
            self.identities[name] = self.identities[name] if identity is None else identity
            self.mesh.connect(name, self.identities[name], crashes=self.crashes[name])

    def replace(self, name: str, identity: bytes) -> None:
        """It is back, as another model, and the router still takes it for the one before."""
        if name not in self.mesh.streams:
            self.hung.discard(name)
            self.mesh.connect(name, self.identities[name])
            self.identities[name] = identity

    def drain(self, name: str) -> None:
        """It stops, and ends what it has."""
        for upstream_session_id in list(self.runs[name]):
            self.mesh.reply(name, failed(upstream_session_id, UnavailableError("it shut down")))
        self.runs[name].clear()

    def fail(self, name: str) -> None:
        """One session of it fails in the engine."""
        if self.runs[name]:
            upstream_session_id = self.random.choice(list(self.runs[name]))
            del self.runs[name][upstream_session_id]
            counted = {SESSIONS_IN_CALL: str(1 + len(self.runs[name]))}
            error = EngineError("a call failed", metadata=counted)
            self.mesh.reply(name, failed(upstream_session_id, error))

    async def wait(self, seconds: float) -> None:
        """Time passes; replicas that are well report."""
        for _ in range(round(seconds * 10)):
            now = self.mesh.clock.advance(0.1)
            self.mesh.registry.expire(now)
            for name in self.mesh.streams.keys() - self.stopped:
                self.mesh.registry.report(name, ReplicaLoad(fixed_ms=10.0, row_ms=0.1), now)
            self.mesh.switch.expire(now)
        await self.read()

    def _opened(
        self, name: str, upstream_session_id: int, frame: inference_pb2.OpenSession
    ) -> None:
        seed, length = frame.sampling.seed, frame.sampling.max_tokens
        reply = [i for part in (frame.resume, *frame.resumed) for i in ids_in(part)]
        own = self.identities[name]
        if reply and frame.model_identity not in (b"", own):
            refusal = UnavailableError("the reply was begun by another model")
            self.mesh.reply(name, failed(upstream_session_id, refusal))
            return
        if not self.allows_inexact:
            assert reply == [token(seed, number, own) for number in range(len(reply))]
        assert upstream_session_id not in self.runs[name]
        assert frame.echo_accepted
        self.went_alone[seed].append(frame.alone)
        if self.mesh.reply(name, accepted(upstream_session_id, own, waiting=True)):
            request = request_key(frame.tenant, frame.request_id)
            run = Run(seed, length, reply, request, frame.alone)
            self.runs[name][upstream_session_id] = run
        else:
            self.kill(name, is_own=True)
            self.restart(name)

    def _commit(self, name: str, upstream_session_id: int) -> None:
        run = self.runs[name][upstream_session_id]
        base = len(run.reply)
        count = min(self.random.randint(1, 4), run.length - base)
        new = [token(run.seed, base + i, self.identities[name]) for i in range(count)]
        agreed = 0
        while agreed < min(len(run.chain), count) and run.chain[agreed] == new[agreed]:
            agreed += 1
        run.chain = run.chain[agreed:] if agreed == min(len(run.chain), count) else []
        run.reply += new
        run.has_token = True
        commit = inference_pb2.Commit(
            epoch=run.epoch, base=base, accepted=agreed, upto=len(run.reply)
        )
        if new[agreed:]:
            put_ids(commit, CODER, new[agreed:], TokenCodec.VARINT)
        if agreed:
            commit.accepted_ids = block(new[:agreed]).SerializeToString()
        self.mesh.reply(name, inference_pb2.SessionDown(session=upstream_session_id, commit=commit))
        if len(run.reply) == run.length:
            del self.runs[name][upstream_session_id]
            last = done(upstream_session_id)
            last.done.upto = run.length
            self.mesh.reply(name, last)

    def _told(self, chat: Chat, frame: inference_pb2.SessionDown) -> None:
        kind = frame.WhichOneof("kind") or ""
        assert not chat.is_over, "a frame after the last one"
        chat.kinds.append(kind)
        if kind == "commit":
            assert not frame.commit.accepted_ids, "the edge has them"
            assert frame.commit.base == len(chat.reply), "no token twice, none left out"
            assert not frame.commit.accepted or frame.commit.epoch == chat.epoch
            new = chat.sent[: frame.commit.accepted]
            new += ids_of(frame.commit, CODER, max_count=4096)
            chat.sent = (
                chat.sent[len(new) :] if new[: len(chat.sent)] == chat.sent[: len(new)] else []
            )
            chat.reply += new
            chat.model.committed()
            chat.committed_by += [chat.model.identity] * len(new)
            assert frame.commit.upto == len(chat.reply)
        elif kind == "opened":
            chat.model.placed(frame.opened.model_identity)
        elif kind == "moved":
            chat.model.placed(frame.moved.model_identity)
            if chat.epoch <= frame.moved.epoch:
                chat.sent = []
        elif kind == "done":
            chat.done = frame.done
        elif kind == "error":
            chat.error = error_from_proto(frame.error)
        computed = enumerate(chat.committed_by)
        assert chat.reply == [token(chat.seed, number, by) for number, by in computed]
