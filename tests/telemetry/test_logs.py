"""Logs are JSON lines with the service and trace, and without what users wrote."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import pytest
import structlog

from outrider.errors import ConfigError
from outrider.telemetry.logs import PRIVATE_KEYS, configure_logging, log_start
from outrider.telemetry.tracing import span

PARENT = ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "")


@pytest.fixture
def out() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    configure_logging("edge", "info", stream=stream)
    yield stream
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def _lines(out: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_a_line_has_event_level_service_and_trace(out: io.StringIO) -> None:
    with span("chat", parent=PARENT):
        structlog.get_logger().info("session opened", session=7)
    (line,) = _lines(out)
    assert line["event"] == "session opened"
    assert line["session"] == 7
    assert line["level"] == "info"
    assert line["service"] == "edge"
    assert line["trace_id"] == "0af7651916cd43dd8448eb211c80319c"
    assert line["timestamp"].endswith("Z")


@dataclass(frozen=True)
class Settings:
    port: int = 4433
    api_key: str = ""


def test_a_start_says_the_version_and_what_is_not_the_default(out: io.StringIO) -> None:
    log_start(Settings(port=5000, api_key="s3cr3t"))
    (line,) = _lines(out)
    assert (line["event"], line["version"]) == ("starting", version("outrider"))
    assert line["settings"] == {"port": 5000, "api_key": "set"}


def test_private_keys_are_blanked(out: io.StringIO) -> None:
    structlog.get_logger().warning("odd", **dict.fromkeys(PRIVATE_KEYS, "top secret"))
    assert "top secret" not in out.getvalue()
    assert _lines(out)[0]["prompt"] == "[10 withheld]"


def test_the_level_filters_both_worlds(out: io.StringIO) -> None:
    structlog.get_logger().debug("no")
    logging.getLogger("grpc").debug("no")
    logging.getLogger("grpc").warning("seen %d", 3)
    (line,) = _lines(out)
    assert line["event"] == "seen 3"
    assert line["service"] == "edge"


def test_at_debug_libraries_stay_silent(out: io.StringIO) -> None:
    configure_logging("edge", "debug", stream=out)
    logging.getLogger("hpack.hpack").debug("Decoded authorization: Bearer secret")
    logging.getLogger("services.edge.app").debug("ours")
    logging.getLogger("hpack.hpack").info("theirs")
    assert [line["event"] for line in _lines(out)] == ["ours", "theirs"]


def test_exceptions_are_one_line(out: io.StringIO) -> None:
    try:
        raise ConfigError("boom")
    except ConfigError:
        structlog.get_logger().exception("failed")
    (line,) = _lines(out)
    assert line["exception"].startswith("Traceback (most recent call last):")
    assert line["exception"].endswith("ConfigError: boom")


def test_what_a_defect_says_is_withheld_with_all_that_led_to_it(out: io.StringIO) -> None:
    secret = "Miriam"
    try:
        try:
            raise KeyError(secret)
        except KeyError as error:
            raise ExceptionGroup("parts", [ValueError(secret), OSError(28, "no space")]) from error
    except ExceptionGroup as group:
        structlog.get_logger().error("failed", exc_info=group)
        logging.getLogger("asyncio").error("a task\nexception=%r", secret, exc_info=group)
    lines = _lines(out)
    assert secret not in out.getvalue()
    assert [line["event"] for line in lines] == ["failed", "a task"]
    for part in ("KeyError: [", "which led to", "parts (2 sub", "ValueError: [", "28] no space"):
        assert all(part in line["exception"] for line in lines)


def test_a_terminal_shows_no_local_variables() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    terminal = Terminal()
    configure_logging("edge", "info", stream=terminal)
    try:
        user_words = "sec" + "ret"
        raise ConfigError(f"boom {len(user_words)}")
    except ConfigError:
        structlog.get_logger().exception("failed")
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        structlog.reset_defaults()
    assert "boom 6" in terminal.getvalue()
    assert "secret" not in terminal.getvalue()


def test_unknown_level() -> None:
    with pytest.raises(ConfigError, match="log level must be one of"):
        configure_logging("edge", "loud")
