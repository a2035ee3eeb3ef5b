"""The files that a benchmark measures, found by reading imports and the processes it starts.

From the benchmark's module the walk follows every import within `outrider`, `services`, `bench` and
`tests`, those inside functions too, but not those for type checkers alone. A string that is the
name of one of these modules counts as an import: so processes are started (`python -m NAME`). Where
a file starts the `outrider` command, the commands it names are followed, and with `serve` those
services whose roles the benchmark's files name. Data that lie beside a module belong to it; what
`bench/data` has is named in the benchmark's row (`bench.harness.benches`).
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

_PACKAGES: Final = ("outrider", "services", "bench", "tests")
_COMMAND: Final = "outrider.cli.main"
_ROLES: Final = ("edge", "inference", "router", "tokenizer")
_NOT_DATA: Final = {".py", ".pyi", ".pyc", ".md", ".typed"}
_PROMPTS: Final = "bench/data"
_KEEPS_RECORDS: Final = {
    f"bench/harness/{name}.py"
    for name in (
        *("benches", "charts", "provenance", "readme"),
        *("record", "series", "sources", "tables"),
    )
}
"""Modules that write figures down or show them, and measure nothing."""


@dataclass(frozen=True, slots=True)
class _Read:
    """References found in one module's text."""

    imports: tuple[str, ...]
    """Dotted names of imported modules, and of imported names that may be modules."""
    strings: frozenset[str]
    tables: Mapping[str, str]
    """From dictionary values `MODULE:ATTRIBUTE`: the module, by the value's key."""


def files_of(module: str, data: Iterable[str], root: Path) -> tuple[str, ...]:
    """Paths below `root`, sorted, of everything that the benchmark in `module` measures: its
    modules, the data beside them, and the files at or under the paths of `data`."""
    walk = _Walk(root)
    walk.follow(module, started=True)
    walk.follow_commands()
    found = {path for file in walk.files for path in (file, *_data_beside(file, root))}
    found |= {path for given in data for path in _data_under(root / given)}
    return tuple(sorted(str(path.relative_to(root)) for path in found))


def digests(files: Iterable[str], root: Path) -> dict[str, str]:
    """A digest of each file's contents, by its path; "" for one that is not there."""
    return {file: _digest(root / file) for file in files}


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12] if path.is_file() else ""


class _Walk:
    """Over the modules of one project."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.files: set[Path] = set()
        self._started_by: list[_Read] = []
        """Files that start the `outrider` command."""

    def follow(self, name: str, *, started: bool = False) -> None:
        """Take in the module of this name and all it imports, its packages included; `started`: as
        a program, which a package is by its `__main__`. What is no module of ours is left out."""
        parts = name.split(".")
        if parts[0] not in _PACKAGES:
            return
        for length in range(1, len(parts)):
            self._take(self._root.joinpath(*parts[:length], "__init__.py"))
        at = self._root.joinpath(*parts)
        self._take(at.with_suffix(".py"))
        self._take(at / "__init__.py")
        if started:
            self._take(at / "__main__.py")

    def follow_commands(self) -> None:
        """Take in the commands that are started, and the services that they run."""
        commands = _read(self._root / "outrider" / "cli" / "main.py").tables
        done: set[str] = set()
        while self._started_by:
            for command in self._started_by.pop().strings & commands.keys() - done:
                done.add(command)
                self.follow(commands[command])
        if "up" in done or "serve" in done:
            for role in _ROLES if "up" in done else self._roles():
                for module in ("app", "config", "processes.group"):
                    self.follow(f"services.{role}.{module}")

    def _roles(self) -> Iterator[str]:
        """Those that the benchmark's own files name."""
        own = [path for path in self.files if path.is_relative_to(self._root / "bench")]
        strings = frozenset[str]().union(*(_read(path).strings for path in own))
        return (role for role in _ROLES if role in strings)

    def _take(self, path: Path) -> None:
        if path in self.files or not path.is_file():
            return
        if str(path.relative_to(self._root)) in _KEEPS_RECORDS:
            return
        self.files.add(path)
        read = _read(path)
        for name in read.imports:
            self.follow(name)
        for name in read.strings:
            if "." in name:
                self.follow(name, started=True)
        if _COMMAND in read.strings:
            self._started_by.append(read)


@cache
def _read(path: Path) -> _Read:
    if not path.is_file():
        return _Read((), frozenset(), {})
    imports: list[str] = []
    strings: set[str] = set()
    tables: dict[str, str] = {}
    for node in _nodes(ast.parse(path.read_bytes())):
        match node:
            case ast.Import():
                imports += [alias.name for alias in node.names]
            case ast.ImportFrom(module=str(module), level=0):
                imports += [module, *(f"{module}.{alias.name}" for alias in node.names)]
            case ast.Constant(value=str(text)):
                strings.add(text)
            case ast.Dict():
                tables.update(_commands(node))
    return _Read(tuple(imports), frozenset(strings), tables)


def _nodes(node: ast.AST) -> Iterator[ast.AST]:
    """All of them, but those under `if TYPE_CHECKING:`."""
    yield node
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                continue
        yield from _nodes(child)


def _commands(table: ast.Dict) -> Iterator[tuple[str, str]]:
    for key, value in zip(table.keys, table.values, strict=True):
        match key, value:
            case ast.Constant(value=str(name)), ast.Constant(value=str(text)) if ":" in text:
                yield name, text.partition(":")[0]


def _data_beside(module: Path, root: Path) -> Iterator[Path]:
    folder = module.parent
    yield from (path for path in folder.iterdir() if _is_data(path))
    if (data := folder / "data") != root / _PROMPTS:
        yield from _data_under(data)


def _data_under(path: Path) -> Iterator[Path]:
    """The file, or the folder's files."""
    for file in path.rglob("*") if path.is_dir() else (path,):
        if _is_data(file):
            yield file


def _is_data(path: Path) -> bool:
    return path.is_file() and path.suffix not in _NOT_DATA
