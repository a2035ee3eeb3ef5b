"""Checks the private parts of libraries that our files use, and what a release changes in them.

    python -m tools.library_internals                  the installed releases against the record
    python -m tools.library_internals --try aioquic    the newest one, in a folder that is deleted
    python -m tools.library_internals --record         after changes were read and acted upon

A *part* is a method or an attribute of a class in a module that one of our files imports from the
library, if our file has a method of that name in a class that derives from another, or if the name
is private and our file uses it. The record has the digest of each method's source, and for each
attribute that it is set. `tests/test_library_internals.py` compares the installed releases with it.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).resolve().parent.parent
_RECORD: Final = Path(__file__).with_suffix(".json")
_ATTRIBUTE: Final = "an attribute"


@dataclass(frozen=True, slots=True)
class Library:
    """A library of which private parts are used."""

    users: tuple[str, ...]
    """The files that do."""
    tests: tuple[str, ...]
    """Tests that exercise these parts, without the one that checks the installed release first."""


LIBRARIES: Final = {
    "aioquic": Library(
        users=(
            "outrider/client/connection.py",
            "services/edge/http3/framing.py",
            "services/edge/quic/aioquic_shim.py",
            "services/edge/quic/aioquic_streams.py",
        ),
        tests=("tests/edge/quic/test_aioquic_shim.py", "tests/edge/http3/test_session.py"),
    ),
    "anycorn": Library(
        users=(
            "services/edge/http/http1.py",
            "services/edge/http/http2.py",
            "services/edge/http/http2_reset.py",
            "services/edge/http/listener.py",
        ),
        tests=("tests/edge/http", "tests/edge/integration/test_http_framing.py"),
    ),
    "anyio": Library(
        users=("services/edge/http/paced_stream.py",),
        tests=("tests/edge/integration/test_http_chats.py",),
    ),
}


@dataclass(frozen=True, slots=True)
class Release:
    """Parts of a library that our files use, as one release has them."""

    version: str
    parts: dict[str, dict[str, str]]
    """Digest of a method's source, or that it is an attribute; by our file, and class and name."""


def installed(name: str) -> Release:
    """The parts that our files use, in the installed release of a library."""
    return Release(version(name), {user: _used(user, name) for user in LIBRARIES[name].users})


def recorded() -> dict[str, Release]:
    """The recorded parts, by library: those that were read when our files were written."""
    return {name: Release(**it) for name, it in json.loads(_RECORD.read_text()).items()}


def changes(name: str, read: Release, found: Release) -> list[str]:
    """A sentence for each part in which a release differs from the one that was read."""
    said = []
    for user, parts in found.parts.items():
        before = read.parts.get(user, {})
        for part in sorted({*before, *parts}):
            was, now = before.get(part), parts.get(part)
            if was == now:
                continue
            if read.version == found.version:
                what = f"what {user} uses of {part} is not as recorded: look, then --record"
            elif now is None:
                what = f"there is no {part} any more, which {user} uses"
            elif was is None:
                what = f"{part} is new, and {user} uses the name"
            else:
                what = f"{part} is not what it was in {read.version}; {user} uses or replaces it"
            said.append(f"{name} {found.version}: {what}.")
    return said


def _used(user: str, library: str) -> dict[str, str]:
    tree = ast.parse((_ROOT / user).read_text())
    names = _names_used(tree)
    return {
        part: what
        for module in _modules_imported(tree, library)
        for part, what in sorted(_parts(module))
        if part in names or part.partition(".")[2] in names
    }


def _names_used(tree: ast.Module) -> set[str]:
    """Names of private parts, and of all methods in classes that derive from others; those that
    every class has, such as `__init__`, with the name of the class that ours derives from."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _is_private(node.attr):
            names.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if node.value.isidentifier() and _is_private(node.value):
                names.add(node.value)  # of getattr
        elif isinstance(node, ast.ClassDef):
            bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
            for method in node.body:
                if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef) and bases:
                    is_special = method.name.startswith("__")
                    names |= {f"{it}.{method.name}" if is_special else method.name for it in bases}
    return names


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def _modules_imported(tree: ast.Module, name: str) -> list[Path]:
    modules = {
        node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(name)
    }
    origins = [spec.origin for it in sorted(modules) if (spec := find_spec(it)) is not None]
    return [Path(it) for it in origins if it is not None and it.endswith(".py")]


def _parts(module: Path) -> Iterator[tuple[str, str]]:
    """All methods and attributes of the classes of a module."""
    source = module.read_text()
    for owner in ast.parse(source).body:
        if not isinstance(owner, ast.ClassDef):
            continue
        for node in ast.walk(owner):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node in owner.body:
                text = ast.get_source_segment(source, node) or ""
                digest = hashlib.sha256(text.encode()).hexdigest()[:12]
                yield _part(owner, node.name), digest
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                if isinstance(node.value, ast.Name) and node.value.id == "self":
                    yield _part(owner, node.attr), _ATTRIBUTE
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                if node in owner.body:
                    yield _part(owner, node.target.id), _ATTRIBUTE


def _part(owner: ast.ClassDef, name: str) -> str:
    if name.startswith("__") and not name.endswith("__"):
        name = f"_{owner.name.lstrip('_')}{name}"  # as Python mangles it
    return f"{owner.name}.{name}"


def _try(requirement: str) -> int:
    """Compare and test with another release, which nothing else sees."""
    name = requirement.partition("=")[0]
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", folder, requirement]
        subprocess.run(pip, check=True)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join((folder, str(_ROOT)))}
        commands = (["tools.library_internals", name], ["pytest", "-q", *LIBRARIES[name].tests])
        return max(
            subprocess.run([sys.executable, "-m", *it], cwd=_ROOT, env=environment).returncode
            for it in commands
        )


def main() -> int:
    """1: something differs, or a test failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("library", nargs="*", default=sorted(LIBRARIES))
    parser.add_argument("--try", dest="tried", metavar="LIBRARY[==RELEASE]")
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args()
    if options.tried:
        return _try(options.tried)
    if options.record:
        found = {name: asdict(installed(name)) for name in LIBRARIES}
        _RECORD.write_text(json.dumps(found, indent=1) + "\n")
        return 0
    read = recorded()
    said = [it for name in options.library for it in changes(name, read[name], installed(name))]
    print("\n".join(said) or "Nothing that is used has changed.")
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
