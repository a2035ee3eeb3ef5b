"""Fakes that have the signatures of a recorded version, and take nothing else."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from outrider.engines.turn.signatures import Record, Uses, records

FIRST_ARGUMENT = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)


def versions(package: str) -> list[str]:
    """All recorded versions."""
    return [it.version for it in records(package)]


def record_of(package: str, version: str) -> Record:
    """The record of a version."""
    return next(it for it in records(package) if it.version == version)


def signature_of(record: Record, name: str) -> inspect.Signature:
    """A name's signature, or, where a version was read in part, the oldest version's."""
    if name not in record.names:
        record = next(it for it in records(record.package) if name in it.names)
    return record.signature(name)


def shaped(
    record: Record, name: str, allowed: Uses, call: Callable[..., Any], *, is_method: bool = False
) -> Callable[..., Any]:
    """`call` with the recorded signature. Arguments that the version has no parameter for fail, and
    so do those that an adapter does not declare."""
    signature = signature_of(record, name)

    @functools.wraps(call)
    def checked(*arguments: Any, **named: Any) -> Any:
        given = arguments[1:] if is_method else arguments
        bound = signature.bind(*given, **named)
        undeclared = set(bound.arguments) - set(allowed.get(name, ()))
        assert not undeclared, f"{name} is given {undeclared}, which is not declared"
        return call(*arguments, **named)

    if is_method:
        parameters = [FIRST_ARGUMENT, *signature.parameters.values()]
        signature_shown = signature.replace(parameters=parameters)
    else:
        signature_shown = signature
    checked.__signature__ = signature_shown  # type: ignore[attr-defined]
    return checked


def following(ids: list[int], vocabulary_size: int) -> int:
    """A token that depends on all before it."""
    value = len(ids)
    for it in ids:
        value = (value * 31 + it) % 1_000_003
    return value % vocabulary_size
