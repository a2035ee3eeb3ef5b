"""Structured logs: JSON lines in pods, coloured key=value on a terminal, on stderr.

`structlog.get_logger()` works anywhere; records of the standard library's `logging` (gRPC, aioquic,
OpenTelemetry) come out in the same shape. Users' texts, replies and credentials are never logged:
keys that could carry them are blanked, whoever passes them, and so are the messages of exceptions
that may quote what made them fail.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Iterator, MutableMapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, TextIO

import structlog
from structlog.typing import EventDict, ExcInfo, Processor

from outrider.config_text import changed_values
from outrider.errors import ConfigError, OutriderError
from outrider.telemetry.tracing import current_context

PRIVATE_KEYS = frozenset(
    [
        *("prompt", "prompts", "text", "content", "messages", "reply", "completion"),
        *("tools", "tool_calls", "arguments", "reasoning"),
        *("ids", "token_ids", "tokens", "draft"),
        *("key", "idempotency_key", "resume_token", "client_secret", "credential", "user"),
    ]
)
_OWN_PACKAGES = ("outrider", "services")
LEVELS = ("debug", "info", "warning", "error", "critical")


def log_start(config: object) -> None:
    """Log the version and all settings that are not the defaults; secrets appear only as set."""
    structlog.get_logger().info(
        "starting", version=version("outrider"), settings=changed_values(config)
    )


class _StderrHandler(logging.Handler):
    """Writes to the present sys.stderr, which may be replaced."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            print(self.format(record), file=sys.stderr, flush=True)  # noqa: T201 - the log itself
        except OSError:
            self.handleError(record)


def configure_logging(service: str, level: str = "info", *, stream: TextIO | None = None) -> None:
    """Set up logging for this process; a later call replaces an earlier one. Below the level info
    only Outrider itself logs.

    Raises ConfigError for an unknown level.
    """
    if level.lower() not in LEVELS:
        raise ConfigError(f"log level must be one of {', '.join(LEVELS)}, not {level!r}")
    shared = _shared_processors(service)
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.stdlib.LoggerFactory(),
    )
    handler = _StderrHandler() if stream is None else logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *_rendering((stream or sys.stderr).isatty()),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    # Libraries show what they read at the level debug: headers with keys, for instance.
    root.setLevel(max(logging.INFO, logging.getLevelNamesMapping()[level.upper()]))
    for own in _OWN_PACKAGES:
        logging.getLogger(own).setLevel(level.upper())


def _shared_processors(service: str) -> list[Processor]:
    def add_service(_: Any, __: str, event: EventDict) -> EventDict:
        event["service"] = service
        return event

    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        add_service,
        add_trace,
        blank_private,
        blank_failure,
    ]


def _rendering(terminal: bool) -> list[Processor]:
    if terminal:
        # The default renderer shows local variables with a traceback: prompts among them.
        return [structlog.dev.ConsoleRenderer(exception_formatter=_write_failure)]
    render = structlog.processors.ExceptionRenderer(lambda info: failure_text(info[1]))
    return [render, structlog.processors.JSONRenderer()]


def _write_failure(out: TextIO, info: ExcInfo) -> None:
    out.write("\n" + failure_text(info[1]))


def failure_text(failure: BaseException) -> str:
    """A traceback with all that led to it. It has the messages of our own errors and of the
    system's; others, such as KeyError's and those of a parser, may quote a user's text."""
    return "".join(_failure_lines(failure, set())).rstrip("\n")


def failure_place(failure: BaseException) -> str:
    """Its kind, and file and line where it was raised, such as `KeyError at table.py:7`."""
    step = failure.__traceback__
    while step is not None and step.tb_next is not None:
        step = step.tb_next
    if step is None:
        return type(failure).__qualname__
    file = Path(step.tb_frame.f_code.co_filename).name
    return f"{type(failure).__qualname__} at {file}:{step.tb_lineno}"


def _failure_lines(failure: BaseException, told: set[int]) -> Iterator[str]:
    told.add(id(failure))
    before = failure.__cause__ or (None if failure.__suppress_context__ else failure.__context__)
    if before is not None and id(before) not in told:
        yield from _failure_lines(before, told)
        yield "\nwhich led to:\n\n"
    yield "Traceback (most recent call last):\n"
    yield from traceback.format_tb(failure.__traceback__)
    is_public = isinstance(failure, OutriderError | OSError | ImportError | BaseExceptionGroup)
    yield f"{type(failure).__qualname__}: {failure if is_public else '[message withheld]'}\n"
    if isinstance(failure, BaseExceptionGroup):
        for part in failure.exceptions:
            if id(part) not in told:
                yield from _failure_lines(part, told)


def add_trace(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Add the trace id of the current span, so that logs and traces meet."""
    traceparent, _state = current_context()
    if traceparent:
        event["trace_id"] = traceparent.split("-")[1]
    return event


def blank_failure(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Of a failure's event, the first line: asyncio shows the exception in a second one."""
    if event.get("exc_info"):
        event["event"] = str(event["event"]).partition("\n")[0]
    return event


def blank_private(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Replace values under PRIVATE_KEYS by their length."""
    for key in PRIVATE_KEYS & event.keys():
        value = event[key]
        size = len(value) if hasattr(value, "__len__") else 1
        event[key] = f"[{size} withheld]"
    return event
