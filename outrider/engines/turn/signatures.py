"""What an adapter uses of a package, compared with recorded versions and with the installed one.

`recorded_signatures/` has a file per version that was read, made by `tools/engine_signatures.py`
without importing the package.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import structlog

from outrider.errors import ConfigError

log = structlog.get_logger()

FOLDER: Final = Path(__file__).with_name("recorded_signatures")

Uses: TypeAlias = Mapping[str, tuple[str, ...]]
"""Names, module:class or module:class.method, each with parameters or attributes of it."""


@dataclass(frozen=True, slots=True)
class Record:
    """The signatures of one version."""

    package: str
    version: str
    read_from: str
    """What was read."""
    in_part: bool
    """Whether names may be missing: only parts of the sources were to be had."""
    names: Mapping[str, Mapping[str, Any]]

    def signature(self, name: str) -> inspect.Signature:
        """Of a class's constructor or of a method, without self; defaults are their source's text.
        Raises KeyError."""
        return inspect.Signature(
            [
                inspect.Parameter(
                    it[0],
                    getattr(inspect.Parameter, it[1]),
                    default=it[2] if len(it) > 2 else inspect.Parameter.empty,
                )
                for it in self.names[name]["parameters"]
            ]
        )

    def attributes(self, name: str) -> frozenset[str]:
        """What can be read from an object of the class. Raises KeyError."""
        return frozenset(self.names[name]["attributes"])

    def lacks(self, calls: Uses, reads: Uses) -> list[str]:
        """What of these the version does not have, each in words; not what the record leaves
        out."""
        found = []
        for name, wanted in calls.items():
            if name in self.names:
                found += _lacking(name, wanted, self.signature(name).parameters, "parameter")
            elif not self.in_part:
                found.append(f"no {name}")
        for name, wanted in reads.items():
            if name in self.names:
                found += _lacking(name, wanted, self.attributes(name), "attribute")
            elif not self.in_part:
                found.append(f"no {name}")
        return found


def _lacking(name: str, wanted: Iterable[str], found: Iterable[str], what: str) -> list[str]:
    there = set(found)
    return [f"{name} has no {what} {it}" for it in wanted if it not in there]


@functools.cache
def records(package: str) -> tuple[Record, ...]:
    """All records of a package, oldest version first."""
    found = []
    for path in FOLDER.glob(f"{package}-*.json"):
        value = json.loads(path.read_text("utf-8"))
        found.append(Record(**value))
    return tuple(sorted(found, key=lambda it: _ordered(it.version)))


def _ordered(version: str) -> tuple[tuple[int, ...], bool, int]:
    """The numbers, then whether it is final, then the candidate's number."""
    release, _, candidate = version.partition("rc")
    numbers = tuple(int(it) for it in release.split(".") if it.isdigit())
    return numbers, not candidate, int(candidate) if candidate.isdigit() else 0


def check_installed(package: str, version: str, calls: Uses) -> None:
    """Compare the imported package with what an adapter calls. Raises ConfigError if something is
    missing; a version that was not recorded is logged."""
    read = records(package)
    known = ", ".join(it.version for it in read)
    if missing := list(_missing(calls)):
        raise ConfigError(
            f"{package} {version} lacks what Outrider calls: {'; '.join(missing)}; install a "
            f"version that was read: {known}"
        )
    if all(it.version != version.partition("+")[0] for it in read):
        log.warning(
            "engine_version_not_read",
            package=package,
            version=version,
            versions_read=known,
            advice="all that is called exists; if replies look wrong, install a version that was "
            "read, or record this one with tools/engine_signatures.py",
        )


def _missing(calls: Uses) -> Iterator[str]:
    for name, wanted in calls.items():
        try:
            found = parameters_of(_imported(name))
        except (AttributeError, ImportError):
            yield f"no {name}"
        else:
            yield from _lacking(name, wanted, found, "parameter")


def _imported(name: str) -> Any:
    module, _, path = name.partition(":")
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return found


def parameters_of(called: Any) -> frozenset[str]:
    """Names of a callable's parameters."""
    return frozenset(inspect.signature(called).parameters)
