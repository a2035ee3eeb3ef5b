"""The overflow pool: processes that tokenize chats while the threads are saturated.

They are started when the threads are saturated for the first time: until then they would only take
memory. Each process has a thread here that talks to it over one pipe, one chat at a time; it says
by an empty message that it is ready. A request is the cache scope, behind a byte that tells whether
it is set, JSON with the tools, the template's variables and all of the messages but their contents,
and every content in UTF-8 as it is: a long text is encoded once and never pickled. An answer is the
ids as native uint32, or empty for a chat that cannot be encoded: the parent then finds out why.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import threading
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from random import Random
from typing import Final

import structlog

from outrider.errors import OutriderError
from outrider.fair_work.defects import defect, is_defect
from outrider.models.chat import Message, check_messages
from outrider.models.tools import ToolCall
from outrider.models.vocabulary import Vocabulary
from outrider.tokenization.backends.selection import adopt_backend
from outrider.tokenization.encoder import CacheScope, CachingEncoder
from outrider.tokenization.pool.pool import (
    THE_TOKENIZER,
    TokenizationJob,
    TokenizationResult,
    as_tuple,
)
from outrider.tokenization.segment_cache import CachePolicy

MAX_PENDING: Final = 4
"""Chats that one process works on or that wait for it."""
_NO_SCOPE: Final = b"\0"
_SCOPE: Final = b"\1"

Finish = Callable[[TokenizationJob, TokenizationResult], None]
log = structlog.get_logger()


class ProcessPool:
    """An OverflowPool of local processes, chosen by load."""

    def __init__(
        self, vocabulary: Vocabulary, backend: str, *, num_processes: int, cache_bytes: int
    ) -> None:
        """`backend`: the name of the one that this process uses."""
        self.members = [
            TokenizerProcess(vocabulary, backend, cache_bytes) for _ in range(num_processes)
        ]
        self._rng = Random()
        self._is_started = False

    @property
    def num_processes(self) -> int:
        """How many there are, started or not."""
        return len(self.members)

    def offer(self, job: TokenizationJob, finish: Finish) -> bool:
        """Take the job and call `finish` from a thread; False if no process is ready, or if the
        chosen one has no room. The first call starts the processes."""
        if not self._is_started:
            self._is_started = True
            for member in self.members:
                member.start()
        ready = [member for member in self.members if member.is_ready]
        if not ready:
            return False
        loads = [member.num_pending for member in ready]
        return ready[two_choices(loads, self._rng)].enqueue(job, finish)

    def close(self) -> None:
        """Give up what waits and end the processes, without waiting for them."""
        for member in self.members:
            member.close()


class TokenizerProcess:
    """One process and its thread. When the process dies, its chats are encoded in the thread."""

    def __init__(self, vocabulary: Vocabulary, backend: str, cache_bytes: int) -> None:
        self._vocabulary = vocabulary
        self._arguments = (vocabulary, backend, cache_bytes)
        self._pending: deque[tuple[TokenizationJob, Finish]] = deque()
        self._changed = threading.Condition()
        self._is_closed = False
        self.num_pending = 0
        self.is_ready = False
        """Whether it takes chats: it has started, and is not gone."""
        self.process: SpawnProcess | None = None
        self._thread = threading.Thread(target=self._run, name="tokenize-process", daemon=True)

    def start(self) -> None:
        """Start the process, without waiting for it. Call it once, before `close`."""
        self._thread.start()

    def enqueue(self, job: TokenizationJob, finish: Finish) -> bool:
        """Take the job; False if MAX_PENDING wait already, or the process is not ready."""
        with self._changed:
            if not self.is_ready or self._is_closed or self.num_pending >= MAX_PENDING:
                return False
            self._pending.append((job, finish))
            self.num_pending += 1
            self._changed.notify()
        return True

    def close(self) -> None:
        """Give up what waits; the process ends after its current chat."""
        with self._changed:
            self._is_closed = True
            self._pending.clear()
            self._changed.notify()

    def join(self, timeout_s: float) -> None:
        """After `close`: wait until the process is gone, if it was started."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    # Everything below runs in the thread.

    def _run(self) -> None:
        connection = self._started()
        if connection is None:
            return
        with connection:
            while (taken := self._take()) is not None:
                job, finish = taken
                result = None if job.is_cancelled else self._result(connection, job)
                with self._changed:
                    self.num_pending -= 1  # before finish, whose caller may offer the next job
                if result is not None:
                    finish(job, result)
        assert self.process is not None
        self.process.join()

    def _started(self) -> Connection | None:
        """The way to the process, once it is ready; None if it cannot be started."""
        context = multiprocessing.get_context("spawn")  # noqa: TID251 - spawn does not fork
        with contextlib.ExitStack() as ending:
            try:
                ours, theirs = context.Pipe()
                ending.callback(ours.close)
                with theirs:
                    process = context.Process(
                        target=_serve, args=(theirs, *self._arguments), name="tokenize", daemon=True
                    )
                    process.start()
                self.process = process
                ours.recv_bytes()
            except (EOFError, OSError) as error:
                log.warning("tokenizer_process_not_started", error=str(error))
                return None
            ending.pop_all()
        self.is_ready = True
        return ours

    def _take(self) -> tuple[TokenizationJob, Finish] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._pending or self._is_closed)
            return self._pending.popleft() if self._pending else None

    def _result(self, connection: Connection, job: TokenizationJob) -> TokenizationResult:
        try:
            check_messages(job.messages)
            answer = _ask(connection, job) if self.is_ready else b""
            if answer:
                return as_tuple(array("I", answer))
            return tuple(self._vocabulary.encode_chat(job.messages, job.tools, job.variables))
        except OutriderError as error:
            return error
        except (EOFError, OSError):
            self.is_ready = False
            log.warning("tokenizer_process_lost", pid=self.process and self.process.pid)
            return self._result(connection, job)
        except BaseException as failure:
            if not is_defect(failure):
                raise
            return defect(failure, THE_TOKENIZER)


def two_choices(loads: Sequence[int], rng: Random) -> int:
    """The index of the less loaded of two picked at random: near the best of all, without herding
    (Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing", 2001). `loads` is not
    empty."""
    if len(loads) == 1:
        return 0
    first, second = rng.sample(range(len(loads)), 2)
    return first if loads[first] <= loads[second] else second


def _ask(connection: Connection, job: TokenizationJob) -> bytes:
    """The answer to one chat; blocks. Raises EOFError or OSError when the process is gone."""
    connection.send_bytes(_NO_SCOPE if job.scope is None else _SCOPE + job.scope)
    heads = [_head(it) for it in job.messages]
    connection.send_bytes(json.dumps([job.tools, job.variables, heads]).encode())
    for message in job.messages:
        connection.send_bytes(message.content.encode())
    return connection.recv_bytes()


def _head(message: Message) -> list[object]:
    """All fields of a message but its content, in their order."""
    calls = [[call.id, call.name, call.arguments] for call in message.tool_calls]
    return [message.role, calls, message.tool_call_id, message.name, message.reasoning]


# Everything below runs in the other process.


def _serve(connection: Connection, vocabulary: Vocabulary, backend: str, cache_bytes: int) -> None:
    """Answer until the parent closes. `backend` passed the equivalence test in the parent."""
    adopted = adopt_backend(vocabulary, backend, "the parent process uses it")
    encoder = CachingEncoder(vocabulary, adopted, CachePolicy(max_bytes=cache_bytes))
    with contextlib.suppress(EOFError, OSError, KeyboardInterrupt):
        connection.send_bytes(b"")
        while True:
            scope = connection.recv_bytes()
            tools, variables, messages = _receive(connection)
            own_scope = None if scope == _NO_SCOPE else scope[1:]
            connection.send_bytes(_answer(encoder, messages, own_scope, tools, variables))


def _receive(connection: Connection) -> tuple[Sequence[str], str, list[Message]]:
    """Tools, variables and messages."""
    tools, variables, heads = json.loads(connection.recv_bytes())
    messages = []
    for role, calls, call_id, name, reasoning in heads:
        content = connection.recv_bytes().decode()
        made = tuple(ToolCall(*call) for call in calls)
        messages.append(Message(role, content, made, call_id, name, reasoning))
    return tools, variables, messages


def _answer(
    encoder: CachingEncoder,
    messages: list[Message],
    scope: CacheScope,
    tools: Sequence[str],
    variables: str,
) -> bytes:
    try:
        return encoder.encode_chat(messages, scope, tools=tools, variables=variables).tobytes()
    except BaseException as failure:
        if not is_defect(failure):
            raise
        return b""  # the parent finds out why
