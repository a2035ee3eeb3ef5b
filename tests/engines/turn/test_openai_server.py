"""Servers that speak OpenAI's API: the contract on a recorded exchange with vLLM, and what becomes
of servers that die, refuse, fall silent, or are none that can serve."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.engines.turn.base import Ability, TurnEngine, TurnPiece
from outrider.engines.turn.openai_server.completions import CompletionStream, body_of, load_of
from outrider.engines.turn.openai_server.config import OpenAiServerOptions
from outrider.engines.turn.openai_server.http import MAX_LINE_BYTES, HttpServer
from outrider.engines.turn.openai_server.opening import open_server
from outrider.errors import (
    ConfigError,
    EngineError,
    InvalidSamplingError,
    OutriderError,
    OverloadedError,
    ReplicaLostError,
    UnavailableError,
)
from outrider.models.vocabulary import Vocabulary
from outrider.sampling.grammar import Grammar, GrammarKind
from outrider.session.types import FinishReason
from tests.engines.turn.contract import TurnEngineContract, ids_of, pieces_of, turn
from tests.engines.turn.exchange import Exchange, replaying
from tests.engines.turn.servers import answering, engine_at, nobody_there, plain, stream

COMPLETIONS = "/v1/completions"
METRICS = b"""# HELP vllm:num_requests_running x
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0
vllm:num_requests_waiting{engine="0",model_name="m"} 1.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="400"} 1.0
"""
GOOD = {
    "/health": plain(b""),
    "/v1/models": plain(b'{"data": [{"id": "m", "max_model_len": 512}]}'),
    "/metrics": plain(METRICS),
    "/version": plain(b'{"version": "0.32.0"}'),
    COMPLETIONS: stream(
        b'{"choices": [{"token_ids": [5], "finish_reason": null}]}',
        b'{"choices": [{"token_ids": [6], "finish_reason": "length"}]}',
        b"[DONE]",
    ),
}


@pytest.mark.model
class TestRecordedVllm(TurnEngineContract):
    @pytest.fixture
    async def engine(self, vocabulary: Vocabulary) -> AsyncIterator[TurnEngine]:
        async with replaying(Exchange.load()) as url:
            engine = await open_server(OpenAiServerOptions(url=url, max_sessions=32), vocabulary)
            yield engine
            await engine.close()

    @pytest.fixture
    def lost_engine(self) -> TurnEngine:
        return nobody_there()


@pytest.mark.model
async def test_what_a_server_says_of_itself_counts(vocabulary: Vocabulary) -> None:
    async with answering(GOOD) as (url, _):
        engine = await open_server(OpenAiServerOptions(url=url), vocabulary)
        assert (engine.info.max_context_tokens, engine.info.num_blocks) == (512, 400)
        assert engine.info.version == "vllm 0.32.0"
        assert Ability.PRIORITY in engine.info.abilities
        shorter = await open_server(
            OpenAiServerOptions(url=url, max_context_tokens=100), vocabulary
        )
        assert shorter.info.max_context_tokens == 100
        load = await engine.load()
        assert load is not None and (load.running, load.waiting, load.free_blocks) == (5, 1, 300)


@pytest.mark.model
@pytest.mark.parametrize(
    ("answers", "error", "said"),
    [
        ({"/metrics": plain(b"sglang:num_running_reqs 0\n")}, EngineError, "cache_salt"),
        ({"/version": plain(b'{"version": "0.10.2"}')}, EngineError, "0.11"),
        ({"/v1/models": plain(b"", 401)}, ConfigError, "key_file"),
        ({"/v1/models": plain(b'{"data": []}')}, ConfigError, "no model"),
        (
            {"/v1/models": plain(b'{"data": [{"id": "a"}, {"id": "b"}]}')},
            ConfigError,
            "server.model",
        ),
        ({"/v1/models": plain(b'{"data": [{"id": "m"}]}')}, ConfigError, "max_context_tokens"),
        ({"/detokenize": plain(b'{"prompt": "other words"}')}, EngineError, "vocabulary"),
        (
            {COMPLETIONS: stream(b'{"choices": [{"text": "a", "finish_reason": "length"}]}')},
            EngineError,
            "token ids",
        ),
        ({COMPLETIONS: stream(b"[DONE]")}, EngineError, "0 token ids"),
    ],
)
async def test_servers_that_cannot_serve_are_refused_at_the_start(
    answers: dict[str, bytes], error: type[OutriderError], said: str, vocabulary: Vocabulary
) -> None:
    async with answering({**GOOD, **answers}) as (url, _):
        with pytest.raises(error, match=said):
            await open_server(OpenAiServerOptions(url=url), vocabulary)


@pytest.mark.model
async def test_a_server_that_never_answers_is_given_up(vocabulary: Vocabulary) -> None:
    server = nobody_there()
    options = OpenAiServerOptions(url=server._server.name, start_timeout_s=0.3)
    with pytest.raises(UnavailableError, match="not ready"):
        await open_server(options, vocabulary)


async def test_a_server_that_dies_in_a_reply_is_lost() -> None:
    begun = b'{"choices": [{"token_ids": [5], "finish_reason": null}]}'
    for is_ended in (True, False):
        async with answering({COMPLETIONS: stream(begun, is_ended=is_ended)}) as (url, _):
            with pytest.raises(ReplicaLostError):
                await ids_of(engine_at(url), turn())


async def test_a_server_that_falls_silent_in_a_reply_is_lost() -> None:
    begun = b'{"choices": [{"token_ids": [5], "finish_reason": null}]}'
    answer = {COMPLETIONS: stream(begun, is_ended=False)}
    async with answering(answer, then_hangs=True) as (url, _):
        with pytest.raises(ReplicaLostError, match="nothing came"):
            await ids_of(engine_at(url, silence_timeout_s=0.2), turn())


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (plain(b'{"error": {"message": "too long", "code": 400}}', 400), InvalidSamplingError),
        (plain(b'{"message": "no"}', 422), InvalidSamplingError),
        (plain(b"", 401), UnavailableError),
        (plain(b"busy", 503), OverloadedError),
        (plain(b'{"detail": "?"}', 500), EngineError),
        (stream(b'{"error": {"message": "engine died", "code": 500}}'), EngineError),
        (stream(b"no json"), EngineError),
        (stream(b"[1]"), EngineError),
        (stream(b'{"choices": [{"token_ids": ["5"], "finish_reason": null}]}'), EngineError),
        (stream(b'{"choices": [{"token_ids": [], "finish_reason": "error"}]}'), EngineError),
        (stream(b"x" * (MAX_LINE_BYTES + 10)), EngineError),
        (b"not HTTP at all\r\n\r\n", ReplicaLostError),
    ],
)
async def test_what_a_server_refuses_and_breaks(answer: bytes, error: type[OutriderError]) -> None:
    async with answering({COMPLETIONS: answer}) as (url, _):
        with pytest.raises(error):
            await ids_of(engine_at(url), turn())


@pytest.mark.model
async def test_the_key_is_sent_and_shown_nowhere(tmp_path: Path, vocabulary: Vocabulary) -> None:
    file = tmp_path / "key"
    file.write_text("secret-key\n")
    async with answering(GOOD) as (url, heads):
        options = OpenAiServerOptions(url=url, key_file=file)
        await open_server(options, vocabulary)
    assert all("authorization: Bearer secret-key\r\n" in head for head in heads)
    assert "secret-key" not in repr(options)
    file.write_text("two\nlines")
    with pytest.raises(ConfigError, match="one key") as refused:
        await open_server(options, vocabulary)
    assert "two" not in refused.value.message


def test_addresses() -> None:
    assert HttpServer("http://user:secret@host:80/v1").name == "http://host:80"
    for wrong in ("http://", "http://host:port", "ftp://host"):
        with pytest.raises(ConfigError):
            HttpServer(wrong)
    with pytest.raises(ConfigError, match="cannot be read"):
        HttpServer("https://host", ca=Path("/nowhere.pem"))
    for settings in ({"url": "host:80"}, {"kind": "other"}):
        with pytest.raises(ConfigError):
            OpenAiServerOptions(**settings)  # type: ignore[arg-type]


def test_a_request_says_all_of_its_sampling() -> None:
    """What is left out a server takes from the model's own defaults."""
    body = body_of(turn(salt=b"\x01\x02", end_ids=(2,)), "m", has_priorities=False)
    named = {"temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed"}
    assert named <= body.keys() and body["ignore_eos"] is True
    assert (body["cache_salt"], body["stop_token_ids"]) == ("0102", [2])
    assert "priority" not in body and "logprobs" not in body


def test_grammars_become_the_servers_own() -> None:
    kinds = {
        GrammarKind.JSON_OBJECT: ("", {"json_object": True}),
        GrammarKind.JSON_SCHEMA: ('{"type": "object"}', {"json": {"type": "object"}}),
        GrammarKind.REGEX: ("a+", {"regex": "a+"}),
    }
    for kind, (text, expected) in kinds.items():
        body = body_of(turn(grammar=Grammar(kind, text)), "m", has_priorities=True)
        assert body["structured_outputs"] == expected and body["ignore_eos"] is False
        assert body["priority"] == 1


def test_metrics_without_the_load_say_nothing() -> None:
    assert load_of(b"") is None
    assert load_of(METRICS.replace(b"num_requests_waiting", b"other")) is None


@given(
    st.lists(st.lists(st.integers(0, 999), min_size=1, max_size=4), min_size=1, max_size=6),
    st.booleans(),
    st.integers(0, 50),
)
def test_pieces_are_what_the_events_say(
    pieces: list[list[int]], has_usage: bool, cached: int
) -> None:
    reader, found = CompletionStream(), list[TurnPiece]()
    lines = [json.dumps({"choices": [{"token_ids": ids, "finish_reason": None}]}) for ids in pieces]
    lines.append(json.dumps({"choices": [{"token_ids": [], "finish_reason": "stop"}]}))
    if has_usage:
        details = {"prompt_tokens_details": {"cached_tokens": cached}}
        lines.append(json.dumps({"choices": [], "usage": details}))
    for line in (*lines, "[DONE]"):
        for said in (b": a comment", b"", f"data: {line}".encode()):
            if (piece := reader.read(said)) is not None:
                found.append(piece)
    assert [list(piece.ids) for piece in found] == [*pieces, []]
    assert [piece.finish for piece in found[:-1]] == [None] * len(pieces)
    assert found[-1].finish is FinishReason.STOP
    assert found[-1].cached_tokens == (cached if has_usage else None)


async def test_a_reply_that_is_closed_closes_its_connection() -> None:
    begun = b'{"choices": [{"token_ids": [5], "finish_reason": null}]}'
    answer = {COMPLETIONS: stream(begun, is_ended=False)}
    async with answering(answer, then_hangs=True) as (url, _):
        reply = engine_at(url).reply(turn())
        assert (await anext(reply)).ids == (5,)
        await reply.aclose()
    # The server's task ends by reading the end of the connection: leaving the block waits for it.
    with pytest.raises(ReplicaLostError):
        await pieces_of(engine_at(url), turn())
