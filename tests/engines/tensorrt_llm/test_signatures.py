"""What is taken for granted about the package is checked in its files and once imported."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from outrider.engines.tensorrt_llm.api import import_api
from outrider.engines.tensorrt_llm.signatures import (
    FACTS,
    Fact,
    check_loaded,
    check_sources,
    find_package,
)
from outrider.errors import ConfigError


def write_package(folder: Path, drop: str = "") -> Path:
    """Files that define what the facts name, fields of TorchLlmArgs in a base class; without any
    line that mentions `drop`."""
    files: dict[str, list[str]] = {}
    bodies: dict[tuple[str, str], list[str]] = {}
    for fact in FACTS:
        owner = "BaseLlmArgs" if fact.defined_as == "TorchLlmArgs" else fact.defined_as
        body = bodies.setdefault((fact.source, owner), ["    pass"])
        if fact.method:
            arguments = "".join(f"\n        {name}," for name in ("self", *fact.names))
            body.append(f"    def {fact.method}({arguments}\n    ): ...")
        body += [] if fact.method else [f"    {name}: int = 0" for name in fact.names]
    for (source, owner), body in bodies.items():
        files.setdefault(source, []).append("\n".join([f"class {owner}(Base):", *body]))
    files["llmapi/llm_args.py"].append("class TorchLlmArgs(BaseLlmArgs):\n    pass")
    for source, classes in files.items():
        path = folder / source
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = "\n\n".join(classes).splitlines()
        path.write_text("\n".join(line for line in lines if not drop or drop not in line))
    return folder


def test_files_that_define_everything_pass(tmp_path: Path) -> None:
    check_sources(write_package(tmp_path))


@pytest.mark.parametrize(
    ("drop", "words"),
    [
        ("cache_salt", "BaseLLM.generate_async has no parameter cache_salt"),
        ("prompt_logprobs", "CompletionOutput has no field prompt_logprobs; SamplingParams has no"),
        ("tokens_per_block", "KvCacheConfig has no field tokens_per_block"),
        ("enable_chunked_prefill", "TorchLlmArgs has no field enable_chunked_prefill"),
        ("rank:", "Logprob has no field rank"),
    ],
)
def test_whatever_a_file_lacks_is_named(tmp_path: Path, drop: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_sources(write_package(tmp_path, drop))


def test_missing_files_classes_and_methods_are_named(tmp_path: Path) -> None:
    package = write_package(tmp_path)
    (package / "executor/result.py").write_text("class GenerationResult:\n    x: int = 0\n")
    (package / "sampling_params.py").unlink()
    (package / "llmapi/llm.py").write_text("class (")
    with pytest.raises(ConfigError) as caught:
        check_sources(package)
    for words in (
        "GenerationResult has no method abort",
        "no class Logprob",
        "sampling_params.py cannot be read",
        "llmapi/llm.py cannot be read",
    ):
        assert words in caught.value.message


def test_the_installed_package_has_what_is_needed() -> None:
    """Where the package is installed, GPU or not; where it is not, that is what is printed."""
    package = find_package()
    if package is None:
        pytest.skip("not run: tensorrt_llm is not installed")
    check_sources(package)


class _Pydantic:
    model_fields: dict[str, Any] = {"one": None}  # noqa: RUF012


class _Plain:
    def method(self, first: int, *, second: int) -> None: ...


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("tensorrt_llm")
    monkeypatch.setitem(sys.modules, "tensorrt_llm", module)
    monkeypatch.setitem(sys.modules, "tensorrt_llm.llmapi", ModuleType("tensorrt_llm.llmapi"))
    module.__dict__.update(Pydantic=_Pydantic, Plain=_Plain)
    return module


@pytest.mark.parametrize(
    ("name", "method", "names", "words"),
    [
        ("Pydantic", "", ("one",), ""),
        ("Pydantic", "", ("one", "two"), "no field two"),
        ("Plain", "", ("one",), "no field one"),
        ("Plain", "method", ("first", "second"), ""),
        ("Plain", "method", ("third",), "has no parameter third"),
        ("Plain", "other", (), "Plain has no method other"),
        ("Absent", "", (), "tensorrt_llm has no Absent"),
    ],
)
def test_the_imported_package_is_asked(
    package: ModuleType, name: str, method: str, names: tuple[str, ...], words: str
) -> None:
    fact = Fact("file.py", name, f"tensorrt_llm:{name}", method, names)
    if not words:
        check_loaded([fact])
        return
    with pytest.raises(ConfigError, match=words):
        check_loaded([fact])


def test_a_package_of_another_shape_is_refused(package: ModuleType) -> None:
    with pytest.raises(ConfigError, match="not the package this engine was written against"):
        import_api()
