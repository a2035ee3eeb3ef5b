"""Two tokenizer services that know together what each was asked, and Redis between them."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from outrider.errors import ConfigError
from outrider.models.vocabulary import Vocabulary
from outrider.v1 import tokenizer_pb2
from outrider.wire import token_block_from_proto
from services.tokenizer.config import SharedCacheConfig, TokenizerConfig
from services.tokenizer.vocabularies import ServedVocabulary
from tests.redis_server import redis_server
from tests.tokenizer.running import MODEL, TokenizerUnderTest, running_tokenizer

pytestmark = pytest.mark.model

TEXT = "A document that two nodes are asked about. " * 300


async def figure(service: TokenizerUnderTest, outcome: str) -> float:
    name = f'outrider_tokenization_shared_cache_texts_total{{outcome="{outcome}"}}'
    metrics = await service.admin("/metrics")
    (line,) = [line for line in metrics.splitlines() if line.startswith(name)]
    return float(line.split()[-1])


async def encoded(service: TokenizerUnderTest, vocabulary: Vocabulary, salt: bytes) -> list[int]:
    request = tokenizer_pb2.EncodeRequest(number=1, text=TEXT, cache_salt=salt)
    block = (await service.encode([request]))[1].ids
    coder = ServedVocabulary.of(MODEL, vocabulary).coder
    return list(coder.decode(token_block_from_proto(block), max_count=1 << 20))


async def test_what_one_service_was_asked_another_finds_and_redis_may_die(
    vocabulary: Vocabulary,
) -> None:
    expected = vocabulary.encode(TEXT)
    with redis_server() as server:
        settings = {
            "shared_cache": SharedCacheConfig(
                url=server.url, key="k" * 32, timeout_ms=1000.0, min_chars=1
            ),
        }
        async with (
            running_tokenizer(None, **settings) as one,
            running_tokenizer(None, **settings) as other,
        ):
            assert await encoded(one, vocabulary, b"salt") == expected

            while await figure(one, "written") != 1:
                await asyncio.sleep(0.02)
            assert await encoded(other, vocabulary, b"salt") == expected
            assert await figure(other, "found") == 1
            assert await encoded(other, vocabulary, b"another") == expected
            assert await encoded(other, vocabulary, b"") == expected
            assert await figure(other, "found") == 1
            server.kill()
            assert await encoded(other, vocabulary, b"a third") == expected
            assert await figure(other, "found") == 1
            metrics = await other.admin("/metrics")
            (failures,) = re.findall(
                r"^outrider_tokenization_shared_cache_failures_total (\S+)$", metrics, re.MULTILINE
            )
            assert float(failures) >= 1
            assert re.search(
                r"^outrider_tokenization_shared_cache_up [01]\.0$", metrics, re.MULTILINE
            )


async def test_a_cache_that_cannot_be_used_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="secret"):
        async with running_tokenizer(None, shared_cache=SharedCacheConfig("redis://x")):
            pass
    with pytest.raises(ConfigError, match="shared_cache"):
        async with running_tokenizer(None, shared_cache=SharedCacheConfig("no url", key="k" * 32)):
            pass
    with pytest.raises(ConfigError, match="has 5 characters"):
        async with running_tokenizer(
            None, shared_cache=SharedCacheConfig("redis://x", key="guess")
        ):
            pass


async def test_secrets_come_from_files_and_are_not_shown(
    vocabulary: Vocabulary, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    key, password = tmp_path / "key", tmp_path / "password"
    key.write_text("the-key-" * 5 + "\n")
    password.write_text("the-password\n")
    with redis_server() as server:
        async with running_tokenizer(
            None,
            shared_cache=SharedCacheConfig(
                url=server.url,
                key_file=key,
                password_file=password,
                timeout_ms=1000.0,
                min_chars=1,
            ),
        ) as service:
            assert await encoded(service, vocabulary, b"salt") == vocabulary.encode(TEXT)
            assert await figure(service, "asked") >= 1
    shown = capfd.readouterr()
    assert "the-" not in shown.out + shown.err
    config = TokenizerConfig(shared_cache=SharedCacheConfig(key="the-key", password="the-password"))
    assert "the-" not in repr(config)
    with pytest.raises(ConfigError, match=r"both shared_cache\.key"):
        SharedCacheConfig(key="k", key_file=key)
    with pytest.raises(ConfigError, match="cannot be read"):
        async with running_tokenizer(
            None, shared_cache=SharedCacheConfig("redis://x", key_file=tmp_path / "none")
        ):
            pass
    with pytest.raises(ConfigError, match="holds a user") as refused:
        async with running_tokenizer(
            None, shared_cache=SharedCacheConfig("redis://:the-password@x", key="k" * 32)
        ):
            pass
    assert "the-password" not in str(refused.value)
