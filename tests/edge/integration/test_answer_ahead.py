"""Replies begun before their prompts are sent: sealed until exactly that is asked for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from outrider.cli.prompting.conversation import Conversation, Settings
from outrider.cli.prompting.painter import Painter
from outrider.client import ChatResult, Client, Committed, Event, Message
from outrider.client.chat import Chat
from outrider.client.client import Typing
from outrider.errors import OverloadedError
from outrider.models.vocabulary import Vocabulary
from outrider.sampling.params import SamplingParams
from outrider.testing import eventually
from outrider.v1 import common_pb2, inference_pb2
from services.edge.access.identity import TenantConfig
from services.edge.access.shared_limits import SharedAsk
from services.edge.limits.quotas import Rate
from services.edge.session.ahead_plan import AheadPolicy
from tests.api_keys import key_of, text_of
from tests.edge.integration.nat import Nat
from tests.edge.integration.running import REPLY, Running, running

TENANT = TenantConfig("acme", output_tokens_per_minute=10_000)
TEXT = "Which of these trains leaves first?"
BEFORE = [Message("system", "Be brief.")]
SAMPLED = SamplingParams(temperature=0.8, seed=7)
AHEAD = AheadPolicy(
    max_tokens=12, min_tokens=12, min_pause_ms=1.0, max_pause_ms=20.0, min_wait_ms=0.0
)
"""Of an edge that waits for no long pauses."""
pytestmark = pytest.mark.edge(ahead=AHEAD)


def begun(mesh: Running) -> list[Any]:
    return [it for it in mesh.region.opened if it.background]


def asked(mesh: Running) -> list[Any]:
    return [it for it in mesh.region.opened if not it.background and it.sampling.max_tokens > 1]


async def typed(mesh: Running, client: Client, text: str = TEXT, **options: Any) -> Typing:
    """Type a text; returns when what is begun for it has all its tokens here."""
    before = len(mesh.region.finished)
    typing = client.typing(BEFORE, **{"ahead": True, "sampling": SAMPLED, **options})
    for num_chars in range(1, len(text) + 1):
        typing.update(text[:num_chars])
    whole = f"{text}<|im_end|>".encode()

    def is_begun() -> bool:
        return any(
            whole in b"".join(map(mesh.region.vocabulary.token_bytes, mesh.region.prompt(it.open)))
            for it in mesh.region.finished[before:]
            if it.open.background
        )

    await eventually(lambda: is_begun() and not mesh.num_region_sessions)
    return typing


async def until_committed(chat: Chat) -> AsyncIterator[Event]:
    """Its events up to the first commit."""
    async for event in chat:
        yield event
        if isinstance(event, Committed):
            return


async def chat(client: Client, text: str = TEXT, **options: Any) -> Any:
    messages = [*BEFORE, Message("user", text)]
    async with client.chat(messages, **{"sampling": SAMPLED, **options}) as asked:
        return await asked.result()


async def test_what_was_begun_is_the_beginning_of_the_reply(mesh: Running, client: Client) -> None:
    await typed(mesh, client)
    mesh.region.gate.clear()  # nothing more comes from the region for now
    messages = [*BEFORE, Message("user", TEXT)]
    async with client.chat(messages, sampling=SAMPLED) as running:
        events = [event async for event in until_committed(running)]
        first = events[-1]
        assert isinstance(first, Committed) and len(first.ids) == AHEAD.max_tokens
        assert first.text and REPLY.startswith(first.text)
        mesh.region.gate.set()
        result = await running.result()
    assert result.text == REPLY
    assert result.speculation_stats.ahead_tokens == AHEAD.max_tokens
    (real,) = asked(mesh)
    assert real.resume.count == AHEAD.max_tokens and real.begun_ahead
    assert real.priority == common_pb2.PRIORITY_MEDIUM and not real.background
    for opening in begun(mesh):
        assert opening.priority == common_pb2.PRIORITY_LOW
        assert opening.speculation == common_pb2.SPECULATION_OFF
        assert opening.sampling.max_tokens == AHEAD.max_tokens
        assert opening.sampling.seed == SAMPLED.seed
        assert opening.request_id != real.request_id
    assert mesh.of_model("outrider_edge_ahead_tokens_total", fate="sent") == 12
    assert mesh.of_model("outrider_edge_ahead_chats_total", reply="ready") == 1


@pytest.mark.parametrize(
    "other",
    [
        {"text": TEXT + " And which last?"},
        {"text": TEXT[:-1]},
        {"sampling": SamplingParams(temperature=0.8, seed=8)},
        {"sampling": SamplingParams(temperature=0.7, seed=7)},
        {"sampling": SamplingParams(temperature=0.8, seed=7, max_tokens=77)},
        {"residency": ("test-region",)},
    ],
)
async def test_whoever_asks_for_anything_else_gets_none_of_it(
    mesh: Running, client: Client, other: Mapping[str, Any]
) -> None:
    await typed(mesh, client)
    result = await chat(client, **other)
    assert result.text == REPLY and result.speculation_stats.ahead_tokens == 0
    assert asked(mesh)[-1].resume.count == 0
    assert mesh.of_model("outrider_edge_ahead_tokens_total", fate="discarded") >= 12
    assert mesh.of_model("outrider_edge_ahead_chats_total", reply="not") == 1


async def test_at_temperature_0_the_seed_is_no_difference(mesh: Running, client: Client) -> None:
    await typed(mesh, client, sampling=SamplingParams(seed=1))
    result = await chat(client, sampling=SamplingParams(seed=2))
    assert result.text == REPLY and result.speculation_stats.ahead_tokens == 12


async def test_another_connection_gets_none_of_it(mesh: Running, client: Client) -> None:
    await typed(mesh, client)
    async with mesh.client(client_secret=client.secret) as other:
        result = await chat(other)
    assert result.text == REPLY and result.speculation_stats.ahead_tokens == 0
    assert (await chat(client)).speculation_stats.ahead_tokens == 12


async def test_it_serves_one_chat(mesh: Running, client: Client) -> None:
    await typed(mesh, client)
    assert (await chat(client)).speculation_stats.ahead_tokens == 12
    assert (await chat(client)).speculation_stats.ahead_tokens == 0


async def test_without_consent_nothing_is_begun(mesh: Running, client: Client) -> None:
    typing = client.typing(BEFORE, sampling=SAMPLED)
    for num_chars in range(1, len(TEXT) + 1):
        typing.update(TEXT[:num_chars])
    await eventually(lambda: bool(mesh.region.opened))
    assert (await chat(client)).text == REPLY
    assert not begun(mesh)


@pytest.mark.parametrize(
    "settings",
    [{"ahead": AheadPolicy(max_tokens=0)}, {"trust": "chat"}, {"ahead_tokens_per_s": 0.1}],
)
async def test_edges_that_begin_none(
    words: Vocabulary, tmp_path: Path, settings: dict[str, Any]
) -> None:
    async with (
        running(words, tmp_path, REPLY, **{"ahead": AHEAD, **settings}) as mesh,
        mesh.client() as client,
    ):
        typing = client.typing(BEFORE, ahead=True, sampling=SAMPLED)
        typing.update(TEXT)
        result = await chat(client)
        assert result.text == REPLY and result.speculation_stats.ahead_tokens == 0
        assert not begun(mesh)


async def test_a_changed_text_ends_what_was_begun(mesh: Running, client: Client) -> None:
    mesh.region.gate.clear()
    typing = client.typing(BEFORE, ahead=True, sampling=SAMPLED)
    typing.update(TEXT)
    await eventually(lambda: len(begun(mesh)) == 1)
    typing.update(TEXT + " W")
    try:
        await eventually(lambda: "the prompt has changed" in mesh.region.cancelled)
    finally:
        mesh.region.gate.set()
    assert (await chat(client)).speculation_stats.ahead_tokens == 0


async def test_a_user_who_leaves_ends_it(mesh: Running) -> None:
    mesh.region.hold(3)
    async with mesh.client() as client:
        client.typing(BEFORE, ahead=True, sampling=SAMPLED).update(TEXT)
        await eventually(lambda: any(it.committed for it in mesh.region.live.values()))
    await eventually(lambda: not mesh.region.live)
    mesh.region.gate.set()


async def test_a_lost_region_leaves_what_came(mesh: Running, client: Client) -> None:
    mesh.region.hold(6)
    client.typing(BEFORE, ahead=True, sampling=SAMPLED).update(TEXT)
    await eventually(lambda: any(it.committed == 6 for it in mesh.region.live.values()))
    await eventually(lambda: mesh.num_region_sessions > 0)
    mesh.region.break_streams()
    await eventually(lambda: mesh.num_region_sessions == 0)
    mesh.region.gate.set()
    await eventually(lambda: bool(mesh.region.calls))
    result = await chat(client)
    assert result.text == REPLY
    assert result.speculation_stats.ahead_tokens in (3, 6), "final, whoever was lost"


def _inexact(commit: inference_pb2.Commit) -> None:
    commit.details = inference_pb2.CommitDetails(inexact=True).SerializeToString()


def _behind_a_gap(commit: inference_pb2.Commit) -> None:
    commit.base += 1
    commit.upto += 1


@pytest.mark.parametrize("spoil", [_inexact, _behind_a_gap])
async def test_tokens_that_cannot_be_used_are_not_kept(
    mesh: Running, client: Client, spoil: Callable[[inference_pb2.Commit], None]
) -> None:
    def mangle(frame: inference_pb2.SessionDown) -> None:
        if frame.HasField("commit"):
            spoil(frame.commit)

    mesh.region.mangle = mangle
    mesh.region.hold(3)
    client.typing(BEFORE, ahead=True, sampling=SAMPLED).update(TEXT)
    try:
        await eventually(lambda: "its tokens cannot be used" in mesh.region.cancelled)
    finally:
        mesh.region.mangle = lambda frame: None
        mesh.region.gate.set()
    result = await chat(client)
    assert result.text == REPLY and result.speculation_stats.ahead_tokens == 0


async def test_a_busy_region_refuses_and_the_chat_never_knows(
    mesh: Running, client: Client
) -> None:
    mesh.region.error = OverloadedError("no time", retry_delay_ms=60_000)
    client.typing(BEFORE, ahead=True, sampling=SAMPLED).update(TEXT)
    await eventually(lambda: len(begun(mesh)) == 1)
    mesh.region.error = None
    result = await chat(client)
    assert result.text == REPLY and result.speculation_stats.ahead_tokens == 0
    assert len(begun(mesh)) == 1


async def test_what_is_typed_is_in_no_log(
    mesh: Running, client: Client, capfd: pytest.CaptureFixture[str]
) -> None:
    secret = "The password of the safe is swordfish."
    await typed(mesh, client, text=secret)
    result = await chat(client, text="Something else?")
    assert result.text == REPLY
    out = "".join(capfd.readouterr())
    assert "swordfish" not in out and REPLY[:5] not in out


async def test_what_is_typed_teaches_nothing_before_it_is_sent(
    mesh: Running, client: Client
) -> None:
    model = mesh.edge.models.first
    assert model is not None
    learning = model.learning.groups
    await typed(mesh, client)
    (salt,) = {it.cache_salt for it in mesh.region.opened}
    assert not learning.version_of(salt), "sealed tokens are no reply"
    await chat(client, text="Something else?")
    said = learning.version_of(salt)
    assert said, "chats do teach"
    await typed(mesh, client, text=TEXT + " Or last?")
    assert learning.version_of(salt) == said


class Charges:
    """Counts shared with other edges, which are asked for nothing."""

    def __init__(self) -> None:
        self.num_asked = self.num_input = self.num_output = 0

    @property
    def all(self) -> tuple[int, int, int]:
        return self.num_asked, self.num_input, self.num_output

    def ask(self, ask: SharedAsk, answered: Callable[[Any], None]) -> None:
        self.num_asked += ask.input_tokens
        answered(None)

    def charge(self, tenant: str, limits: Any, input_tokens: int, output_tokens: int) -> None:
        self.num_input += input_tokens
        self.num_output += output_tokens

    def sessions(self, tenant: str, limits: Any, num_sessions: int) -> None:
        """Not counted."""

    async def close(self) -> None:
        """Nothing is open."""


@pytest.mark.edge(tenants=(TENANT,), keys=(key_of("acme"),), anonymous=False)
async def test_what_is_sent_is_charged_and_nothing_that_is_thrown_away(mesh: Running) -> None:
    charges = Charges()
    mesh.edge.listener.context.limiter.share(charges)
    async with mesh.client(key=text_of("acme")) as client:
        await typed(mesh, client)
        await typed(mesh, client, text=TEXT + " Or last?")
        assert charges.all == (0, 0, 0)
        first = await chat(client, text=TEXT + " Or last?")
        assert first.speculation_stats.ahead_tokens == AHEAD.max_tokens
        once = charges.all
        assert once[2] == len(first.ids) == first.usage.completion_tokens
        again = await chat(client, text=TEXT + " Or last?")
        assert again.speculation_stats.ahead_tokens == 0
        assert charges.all == tuple(2 * num for num in once), "what any chat is charged"


@pytest.mark.edge(ahead_tokens_per_s=2.0)
async def test_of_all_messages_together_only_so_much_is_begun(
    mesh: Running, client: Client
) -> None:
    loop, number = asyncio.get_running_loop(), 0
    since = loop.time()

    def is_refused() -> bool:
        return mesh.sample("outrider_edge_refused_total", reason=Rate.AHEAD_TOKENS.value) > 0

    def is_judged(num_before: int) -> bool:
        return len(begun(mesh)) > num_before or is_refused()

    while not is_refused():
        before = len(begun(mesh))
        client.typing(BEFORE, ahead=True, sampling=SAMPLED).update(f"Message {number}, it is said?")
        await eventually(partial(is_judged, before))
        number += 1
    most = 2.0 * (20.0 + loop.time() - since)
    assert AHEAD.max_tokens <= len(begun(mesh)) * AHEAD.max_tokens <= most
    assert (await chat(client)).text == REPLY


class Person:
    """Types one line, key by key, and notes how many datagrams went out meanwhile."""

    def __init__(self, relay: Nat) -> None:
        self._relay = relay
        self._lines = iter([TEXT])
        self.num_datagrams = 0

    async def ask(self, prompt: str, typed: Callable[[str], None] | None = None) -> str | None:
        line = next(self._lines, None)
        if line is None:
            return None
        await self._quiet()
        before = len(self._relay.sent)
        for num_chars in range(1, len(line) + 1):
            if typed is not None:
                typed(line[:num_chars])
            await asyncio.sleep(0)
        await self._quiet()
        self.num_datagrams = len(self._relay.sent) - before
        return line

    async def _quiet(self) -> None:
        """Return once nothing was sent for a while: acknowledgements of what came are out."""
        loop, seen = asyncio.get_running_loop(), -1
        since = loop.time()

        def is_quiet() -> bool:
            nonlocal seen, since
            if len(self._relay.sent) != seen:
                seen, since = len(self._relay.sent), loop.time()
            return loop.time() > since + 0.5

        await eventually(is_quiet)


@pytest.mark.parametrize("is_on", [False, True])
async def test_while_the_switch_is_off_nothing_is_sent(
    mesh: Running, relay: Nat, is_on: bool
) -> None:
    """Not one datagram between the first key and Enter: a conversation at a terminal."""
    person = Person(relay)
    async with mesh.client(port=relay.port) as client:

        async def reply(
            messages: list[Message], settings: Settings, painter: Painter
        ) -> ChatResult:
            async with client.chat(messages, sampling=settings.sampling) as asked:
                return await asked.result()

        async def check(model: str) -> str:
            return model

        def typed(before: list[Message], settings: Settings) -> Callable[[str], None]:
            return client.typing(before, ahead=True, sampling=settings.sampling).update

        await client.describe()
        settings = Settings("", None, SAMPLED)
        await Conversation(person, reply, settings, check, None, typed if is_on else None).run()
        assert (person.num_datagrams > 0) is is_on
        assert bool(begun(mesh)) is is_on
