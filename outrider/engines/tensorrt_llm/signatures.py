"""What this engine assumes about tensorrt_llm, and two ways to check it.

The facts were read in public sources near the 1.2 line (llmapi/llm.py, llmapi/llm_args.py,
sampling_params.py, executor/result.py). `check_sources` reads the installed files without importing
them, which also works without a GPU; `check_loaded` examines the imported package.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import importlib.util
import inspect
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from outrider.engines.tensorrt_llm.api import PACKAGE
from outrider.errors import ConfigError

LINE = "1.2"
"""The line of releases that is meant; its own sources were not at hand."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A class has these fields, or one of its methods these parameters."""

    source: str
    """The file, inside the package, that defines the class."""
    defined_as: str
    """The class there; inherited members count if the base class is in the same file."""
    public: str
    """Import path of the class, module:name."""
    method: str
    """The method; empty: the fact is about fields."""
    names: tuple[str, ...]


_LLM = ("llmapi/llm.py", "BaseLLM", "tensorrt_llm:LLM")
_RESULT = ("executor/result.py", "GenerationResult", "tensorrt_llm.llmapi:RequestOutput")

FACTS = (
    Fact(
        *_LLM,
        "generate_async",
        ("inputs", "sampling_params", "streaming", "kv_cache_retention_config", "cache_salt"),
    ),
    Fact(*_LLM, "get_stats", ("timeout",)),
    Fact(*_LLM, "get_kv_cache_events", ("timeout",)),
    Fact(*_LLM, "shutdown", ()),
    Fact(*_RESULT, "result", ()),
    Fact(*_RESULT, "abort", ()),
    Fact(
        "executor/result.py",
        "CompletionOutput",
        "tensorrt_llm.llmapi:CompletionOutput",
        "",
        ("prompt_logprobs",),
    ),
    Fact(
        "executor/result.py",
        "Logprob",
        "tensorrt_llm.executor.result:Logprob",
        "",
        ("logprob", "rank"),
    ),
    Fact(
        "sampling_params.py",
        "SamplingParams",
        "tensorrt_llm:SamplingParams",
        "",
        ("max_tokens", "prompt_logprobs", "top_k", "ignore_eos", "end_id", "pad_id", "detokenize"),
    ),
    Fact(
        "llmapi/llm_args.py",
        "KvCacheConfig",
        "tensorrt_llm.llmapi:KvCacheConfig",
        "",
        (
            "enable_block_reuse",
            "enable_partial_reuse",
            "copy_on_partial_reuse",
            "max_tokens",
            "free_gpu_memory_fraction",
            "host_cache_size",
            "event_buffer_max_size",
            "tokens_per_block",
        ),
    ),
    Fact(
        "llmapi/llm_args.py",
        "TorchCompileConfig",
        "tensorrt_llm.llmapi:TorchCompileConfig",
        "",
        ("enable_piecewise_cuda_graph", "capture_num_tokens", "enable_userbuffers"),
    ),
    Fact(
        "llmapi/llm_args.py",
        "TorchLlmArgs",
        "tensorrt_llm.llmapi:TorchLlmArgs",
        "",
        (
            "model",
            "skip_tokenizer_init",
            "tensor_parallel_size",
            "max_batch_size",
            "max_num_tokens",
            "max_seq_len",
            "enable_chunked_prefill",
            "enable_iter_perf_stats",
            "kv_cache_config",
            "torch_compile_config",
        ),
    ),
)


def find_package() -> Path | None:
    """The installed package's folder; it is not imported."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))


def check_sources(package: Path, facts: Collection[Fact] = FACTS) -> None:
    """Compare with the files of a package. Raises ConfigError naming everything that differs."""
    _report([line for fact in facts for line in _source_problems(package, fact)])


def check_loaded(facts: Collection[Fact] = FACTS) -> None:
    """Compare with the package as imported. Raises ConfigError naming everything that differs."""
    _report([line for fact in facts for line in _loaded_problems(fact)])


def _report(problems: list[str]) -> None:
    if problems:
        raise ConfigError(
            f"{PACKAGE} differs from the {LINE} line this engine was written against: "
            f"{'; '.join(problems)}; install a {LINE} release"
        )


def _missing(fact: Fact, found: Collection[str]) -> Iterator[str]:
    what = f"{fact.defined_as}.{fact.method} has no parameter" if fact.method else "no field"
    place = "" if fact.method else f"{fact.defined_as} has "
    for name in fact.names:
        if name not in found:
            yield f"{place}{what} {name}"


def _source_problems(package: Path, fact: Fact) -> Iterator[str]:
    try:
        tree = ast.parse((package / fact.source).read_text(encoding="utf-8"))
    except (OSError, SyntaxError) as error:
        yield f"{fact.source} cannot be read ({error})"
        return
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    if fact.defined_as not in classes:
        yield f"{fact.source} has no class {fact.defined_as}"
        return
    family = list(_family(classes, fact.defined_as))
    if not fact.method:
        yield from _missing(fact, {name for node in family for name in _fields(node)})
        return
    methods = [function for node in family for function in _methods(node, fact.method)]
    if not methods:
        yield f"{fact.defined_as} has no method {fact.method}"
        return
    arguments = methods[0].args
    found = {one.arg for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
    yield from _missing(fact, found)


def _family(classes: dict[str, ast.ClassDef], name: str) -> Iterator[ast.ClassDef]:
    """The class, then its bases as far as this file defines them."""
    yield classes[name]
    for base in classes[name].bases:
        if isinstance(base, ast.Name) and base.id in classes:
            yield from _family(classes, base.id)


def _fields(node: ast.ClassDef) -> Iterator[str]:
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            yield item.target.id


def _methods(node: ast.ClassDef, name: str) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for item in node.body:
        if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef) and item.name == name:
            yield item


def _loaded_problems(fact: Fact) -> Iterator[str]:
    module, _, name = fact.public.partition(":")
    owner = getattr(importlib.import_module(module), name, None)
    if owner is None:
        yield f"{module} has no {name}"
        return
    if not fact.method:
        yield from _missing(fact, _field_names(owner))
        return
    method = getattr(owner, fact.method, None)
    if method is None:
        yield f"{name} has no method {fact.method}"
        return
    yield from _missing(fact, inspect.signature(method).parameters)


def _field_names(owner: type) -> set[str]:
    """Fields of a pydantic model or a dataclass."""
    if hasattr(owner, "model_fields"):
        return set(owner.model_fields)
    return (
        {one.name for one in dataclasses.fields(owner)}
        if dataclasses.is_dataclass(owner)
        else set()
    )
