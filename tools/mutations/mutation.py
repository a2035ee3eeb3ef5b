"""The list of mutations: the change that each makes, and the tests that must notice it."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_LISTS: Final = Path(__file__).parent


class MutationError(Exception):
    """A mutation that cannot be made, or a list that cannot be read."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """One change of the source."""

    name: str
    """Unique name, for `--only`."""
    promise: str
    """The project's promise that the change breaks."""
    file: str
    """Path from the repository's root."""
    old: str
    """The source that is replaced. It occurs once in the file."""
    new: str
    """The source that replaces `old`."""
    tests: tuple[str, ...]
    """Files or node ids: one of them fails."""

    def applied(self, source: str) -> str:
        """The file with the mistake in it."""
        count = source.count(self.old)
        if count != 1:
            raise MutationError(
                f"{self.name}: its text occurs {count} times in {self.file}, and has to occur "
                f"once:\n{self.old}"
            )
        return source.replace(self.old, self.new)


def read_mutations(lists: Iterable[Path] | None = None) -> list[Mutation]:
    """All of them, from the files beside this module, unless others are named."""
    files = sorted(_LISTS.glob("*.toml")) if lists is None else lists
    found = [mutation for file in files for mutation in _of_file(file)]
    twice = [name for name, count in Counter(it.name for it in found).items() if count > 1]
    if twice:
        raise MutationError(f"the name {twice[0]} is that of several mutations")
    return found


def check_applicable(mutations: Sequence[Mutation], root: Path) -> None:
    """That each of them can be made: the source may have changed since it was written."""
    problems = []
    for mutation in mutations:
        problems += [
            f"{mutation.name}: there is no {name}"
            for name in (mutation.file, *(test.partition("::")[0] for test in mutation.tests))
            if not (root / name).exists()
        ]
        if (file := root / mutation.file).exists():
            try:
                mutation.applied(file.read_text())
            except MutationError as error:
                problems.append(str(error))
    if problems:
        raise MutationError("\n".join(problems))


def _of_file(file: Path) -> list[Mutation]:
    rows = tomllib.loads(file.read_text())["mutation"]
    try:
        return [Mutation(**{**row, "tests": tuple(row["tests"])}) for row in rows]
    except (KeyError, TypeError) as error:
        raise MutationError(f"{file.name} has a mutation with other fields: {error}") from error
