"""Failures of what threads compute, apart from those that its code raises by intent."""

from __future__ import annotations

import structlog

from outrider.errors import OutriderError

log = structlog.get_logger()


def is_defect(failure: BaseException) -> bool:
    """Whether code failed, rather than this process being told to end. A Rust package that panics
    raises an exception that is no Exception."""
    return isinstance(failure, Exception) or type(failure).__name__ == "PanicException"


def defect(failure: BaseException, what: str) -> OutriderError:
    """The error for a request at which `what` failed ("the tokenizer"). The log has the stack; the
    thread continues with other requests."""
    log.error("computation_failed", what=what, exc_info=failure)
    return OutriderError(f"{what} failed: {type(failure).__name__}")
