"""Files, modules, settings and tests that the pages name exist."""

from __future__ import annotations

import ast
import dataclasses
import functools
import re
import tomllib
import typing
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

import pytest

from services.edge.config import EdgeConfig
from services.inference.config import InferenceConfig
from services.router.config import RouterConfig
from services.tokenizer.config import TokenizerConfig
from services.tokenizer_worker.config import TokenizerWorkerConfig

ROOT = Path(__file__).parents[1]
FOLDERS = ("bench", "deploy", "docs", "outrider", "protos", "services", "tests", "tools")
PAGES = sorted(
    [*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md"))]
)
CONFIGS: Mapping[str, type] = {
    "edge": EdgeConfig,
    "inference": InferenceConfig,
    "router": RouterConfig,
    "tokenizer": TokenizerConfig,
    "tokenizer_worker": TokenizerWorkerConfig,
}

FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`([^`\n]+)`")
FILE = re.compile(rf"(?:{'|'.join(FOLDERS)})(?:/[a-z_][a-z0-9_.-]*)+/?")
"""A path from the root; one with a placeholder in capitals is not meant."""
SETTING = re.compile(rf"({'|'.join(CONFIGS)})((?:\.(?!toml|json|proto)[a-z][a-z0-9_]*)+)")
"""`role.key`, and not the name of a file."""
TEST = re.compile(r"(tests/[a-z0-9_/]+\.py)::(test_[a-z0-9_]+)")
"""A test by its file and name."""
MODULE = re.compile(r"python -m ((?:bench|services|tests|tools)[a-z0-9_.]*)")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def prose(page: Path) -> str:
    """The page without its blocks of code."""
    return FENCE.sub("", page.read_text("utf-8"))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_files_and_modules_exist(page: Path) -> None:
    names = [code for code in CODE.findall(prose(page)) if FILE.fullmatch(code)]
    assert [name for name in names if not (ROOT / name).exists()] == []
    modules = [module.rstrip(".") for module in MODULE.findall(page.read_text("utf-8"))]
    assert [module for module in modules if find_spec(module) is None] == []


def named_tests(page: Path) -> Iterator[tuple[str, str]]:
    """File and name of each test that a page names. In a footnote a name without a file is in the
    file before it."""
    for line in prose(page).splitlines():
        file = ""
        for code in CODE.findall(line):
            if named := TEST.fullmatch(code):
                file = named[1]
                yield file, named[2]
            elif line.startswith("[^") and file and code.startswith("test_"):
                yield file, code


@functools.cache
def functions_of(file: str) -> frozenset[str]:
    if not (ROOT / file).exists():
        return frozenset()
    tree = ast.parse((ROOT / file).read_text("utf-8"))
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return frozenset(it.name for it in ast.walk(tree) if isinstance(it, kinds))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_tests_exist(page: Path) -> None:
    assert [it for it in named_tests(page) if it[1] not in functions_of(it[0])] == []


def test_tests_of_footnotes_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("`tests/a.py::test_b`\n[^1]: `tests/a.py::test_c`, `test_d`\n`test_e.py`\n")
    assert [*named_tests(page)] == [("tests/a.py", f"test_{it}") for it in "bcd"]
    assert functions_of("tests/a.py") == frozenset()
    assert "test_tests_exist" in functions_of("tests/test_documented_names.py")


def unknown_keys(kind: object, table: Mapping[str, object], where: str) -> Iterator[str]:
    """Keys of a table that its dataclass lacks, those of tables within it included."""
    inner = next((one for one in typing.get_args(kind) if dataclasses.is_dataclass(one)), kind)
    if not (isinstance(inner, type) and dataclasses.is_dataclass(inner)):
        return
    kinds = typing.get_type_hints(inner)
    for key, value in table.items():
        if key not in kinds:
            yield f"{where}.{key}"
            continue
        for entry in value if isinstance(value, list) else [value]:
            if isinstance(entry, Mapping):
                yield from unknown_keys(kinds[key], entry, f"{where}.{key}")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_settings_exist(page: Path) -> None:
    tables = [
        tomllib.loads(block)
        for language, block in FENCE.findall(page.read_text("utf-8"))
        if language == "toml"
    ]
    for code in CODE.findall(prose(page)):
        if found := SETTING.fullmatch(code):
            value: object = None
            for key in reversed(found[2].removeprefix(".").split(".")):
                value = {key: value}
            tables.append({found[1]: value})
    unknown = [
        key
        for table in tables
        for role, value in table.items()
        if role in CONFIGS and isinstance(value, Mapping)
        for key in unknown_keys(CONFIGS[role], value, role)
    ]
    assert unknown == []
