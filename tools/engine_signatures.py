"""Record the signatures that the engines behind `outrider.engines.turn` have, from a wheel.

python -m tools.engine_signatures WHEEL_OR_FOLDER...    a file for each: PACKAGE-VERSION.json

Nothing is imported: files are parsed. A wheel may be a path or the address of one, of which only
the files that are read are fetched, by ranges. A folder holds the package's folder, as an unpacked
wheel does; where it lacks some of the files, `--in-part "where it was read"` says so in the record.

The adapters' tests compare all that an adapter passes and reads with every record, and replicas
name the recorded versions if another one is installed (outrider.engines.turn.signatures).
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import io
import json
import sys
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.request import Request, urlopen

from outrider.engines.turn.signatures import FOLDER

ROOT: Final = Path(__file__).parents[1]


class Place(NamedTuple):
    """Where a public name is defined."""

    file: str
    name: str
    """Class, class and method with a dot between, or function."""


PLACES: Final[Mapping[str, Mapping[str, Place]]] = {
    "vllm": {
        "vllm.v1.engine.async_llm:AsyncLLM.from_engine_args": Place(
            "vllm/v1/engine/async_llm.py", "AsyncLLM.from_engine_args"
        ),
        "vllm.v1.engine.async_llm:AsyncLLM.generate": Place(
            "vllm/v1/engine/async_llm.py", "AsyncLLM.generate"
        ),
        "vllm.v1.engine.async_llm:AsyncLLM.check_health": Place(
            "vllm/v1/engine/async_llm.py", "AsyncLLM.check_health"
        ),
        "vllm.v1.engine.async_llm:AsyncLLM.shutdown": Place(
            "vllm/v1/engine/async_llm.py", "AsyncLLM.shutdown"
        ),
        "vllm.v1.engine.async_llm:AsyncLLM": Place("vllm/v1/engine/async_llm.py", "AsyncLLM"),
        "vllm:AsyncEngineArgs": Place("vllm/engine/arg_utils.py", "AsyncEngineArgs"),
        "vllm:SamplingParams": Place("vllm/sampling_params.py", "SamplingParams"),
        "vllm.sampling_params:StructuredOutputsParams": Place(
            "vllm/sampling_params.py", "StructuredOutputsParams"
        ),
        "vllm.sampling_params:RequestOutputKind": Place(
            "vllm/sampling_params.py", "RequestOutputKind"
        ),
        "vllm.inputs:tokens_input": Place("vllm/inputs/engine.py", "tokens_input"),
        "vllm:RequestOutput": Place("vllm/outputs.py", "RequestOutput"),
        "vllm:CompletionOutput": Place("vllm/outputs.py", "CompletionOutput"),
        "vllm.logprobs:Logprob": Place("vllm/logprobs.py", "Logprob"),
        "vllm.config:StructuredOutputsConfig": Place(
            "vllm/config/structured_outputs.py", "StructuredOutputsConfig"
        ),
        "vllm.config:CacheConfig": Place("vllm/config/cache.py", "CacheConfig"),
        "vllm.config:ModelConfig": Place("vllm/config/model.py", "ModelConfig"),
        "vllm.config:KVEventsConfig": Place("vllm/config/kv_events.py", "KVEventsConfig"),
        "vllm.distributed.kv_events:EventBatch": Place(
            "vllm/distributed/kv_events.py", "EventBatch"
        ),
        "vllm.distributed.kv_events:BlockStored": Place(
            "vllm/distributed/kv_events.py", "BlockStored"
        ),
        "vllm.distributed.kv_events:BlockRemoved": Place(
            "vllm/distributed/kv_events.py", "BlockRemoved"
        ),
        "vllm.v1.metrics.loggers:StatLoggerBase.record": Place(
            "vllm/v1/metrics/loggers.py", "StatLoggerBase.record"
        ),
        "vllm.v1.metrics.stats:SchedulerStats": Place("vllm/v1/metrics/stats.py", "SchedulerStats"),
    },
    "tensorrt_llm": {
        "tensorrt_llm:LLM": Place("tensorrt_llm/llmapi/llm.py", "BaseLLM"),
        "tensorrt_llm:LLM.generate_async": Place(
            "tensorrt_llm/llmapi/llm.py", "BaseLLM.generate_async"
        ),
        "tensorrt_llm:LLM.get_stats_async": Place(
            "tensorrt_llm/llmapi/llm.py", "BaseLLM.get_stats_async"
        ),
        "tensorrt_llm:LLM.get_kv_cache_events_async": Place(
            "tensorrt_llm/llmapi/llm.py", "BaseLLM.get_kv_cache_events_async"
        ),
        "tensorrt_llm:LLM.shutdown": Place("tensorrt_llm/llmapi/llm.py", "BaseLLM.shutdown"),
        "tensorrt_llm.llmapi:TorchLlmArgs": Place(
            "tensorrt_llm/llmapi/llm_args.py", "TorchLlmArgs"
        ),
        "tensorrt_llm.llmapi:KvCacheConfig": Place(
            "tensorrt_llm/llmapi/llm_args.py", "KvCacheConfig"
        ),
        "tensorrt_llm:SamplingParams": Place("tensorrt_llm/sampling_params.py", "SamplingParams"),
        "tensorrt_llm.sampling_params:GuidedDecodingParams": Place(
            "tensorrt_llm/sampling_params.py", "GuidedDecodingParams"
        ),
        "tensorrt_llm.llmapi:RequestOutput": Place(
            "tensorrt_llm/executor/result.py", "GenerationResult"
        ),
        "tensorrt_llm.llmapi:RequestOutput.abort": Place(
            "tensorrt_llm/executor/result.py", "GenerationResult.abort"
        ),
        "tensorrt_llm.llmapi:CompletionOutput": Place(
            "tensorrt_llm/executor/result.py", "CompletionOutput"
        ),
        "tensorrt_llm.executor.result:Logprob": Place("tensorrt_llm/executor/result.py", "Logprob"),
    },
}
"""By package, each public name that an adapter calls or reads, as module:class[.method]."""

_NO_FIELDS: Final = frozenset({"ClassVar", "PrivateAttr"})
_CHUNK_BYTES: Final = 1 << 16


class RangedFile(io.RawIOBase):
    """A file behind an address whose server gives ranges, as zipfile reads one."""

    def __init__(self, address: str) -> None:
        self._address = address
        with urlopen(Request(address, method="HEAD")) as answer:
            self._size = int(answer.headers["Content-Length"])
        self._at = 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        count = min(len(buffer), self._size - self._at)
        if count <= 0:
            return 0
        span = f"bytes={self._at}-{self._at + count - 1}"
        with urlopen(Request(self._address, headers={"Range": span})) as answer:
            found = answer.read(count)
        buffer[: len(found)] = found
        self._at += len(found)
        return len(found)


def parameters_of(
    function: ast.FunctionDef | ast.AsyncFunctionDef, *, is_bound: bool = True
) -> list[list[str]]:
    """Each parameter, without self if it `is_bound`: its name, its kind as inspect calls it, and
    the default's source if it has one."""
    found: list[list[str]] = []
    given = function.args
    positional = [*given.posonlyargs, *given.args]
    defaults = dict(zip(reversed(positional), reversed(given.defaults), strict=False))
    defaults |= {
        one: default
        for one, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)
        if default is not None
    }
    kinds = {
        **dict.fromkeys(given.posonlyargs, "POSITIONAL_ONLY"),
        **dict.fromkeys(given.args, "POSITIONAL_OR_KEYWORD"),
        **dict.fromkeys(given.kwonlyargs, "KEYWORD_ONLY"),
    }
    has_self = is_bound and all(_named(it) != "staticmethod" for it in function.decorator_list)
    for one in [*positional[has_self:], *given.kwonlyargs]:
        default = [ast.unparse(defaults[one])] if one in defaults else []
        found.append([one.arg, kinds[one], *default])
    if given.vararg:
        place = sum(it[1] != "KEYWORD_ONLY" for it in found)
        found.insert(place, [given.vararg.arg, "VAR_POSITIONAL"])
    if given.kwarg:
        found.append([given.kwarg.arg, "VAR_KEYWORD"])
    return found


def fields_of(family: list[ast.ClassDef]) -> list[list[str]]:
    """The parameters of a class that gets its constructor from its fields: a dataclass, a pydantic
    model, a msgspec struct or a typed dictionary; those of its bases come first."""
    found: dict[str, list[str]] = {}
    for node in reversed(family):
        for item in node.body:
            if not isinstance(item, ast.AnnAssign) or not isinstance(item.target, ast.Name):
                continue
            name, default = item.target.id, item.value
            if name.startswith("_") or _is_no_parameter(item):
                continue
            source = [] if default is None else [ast.unparse(_default(default))]
            found[name] = [name, "KEYWORD_ONLY", *source]
    return list(found.values())


def _is_no_parameter(item: ast.AnnAssign) -> bool:
    words = {_named(node) for node in ast.walk(item.annotation)}
    if isinstance(item.value, ast.Call):
        words.add(_named(item.value.func))
        if any(
            it.arg == "init" and isinstance(it.value, ast.Constant) and it.value.value is False
            for it in item.value.keywords
        ):
            return True
    return not words.isdisjoint(_NO_FIELDS)


def _default(value: ast.expr) -> ast.expr:
    """What a field's default is: the argument `default` of field() and its like."""
    if isinstance(value, ast.Call) and _named(value.func) in {"Field", "field"}:
        for one in value.keywords:
            if one.arg in {"default", "default_factory"}:
                return one.value
    return value


def _named(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def attributes_of(family: list[ast.ClassDef]) -> list[str]:
    """What can be read from an object: fields, properties, members, what methods assign to self."""
    found: set[str] = set()
    for node in family:
        for item in node.body:
            match item:
                case ast.AnnAssign(target=ast.Name(id=name)):
                    found.add(name)
                case ast.Assign(targets=[ast.Name(id=name)]):
                    found.add(name)
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    found.add(item.name)
                    found |= set(_assigned(item))
                case _:
                    pass
    return sorted(name for name in found if name.startswith("__a") or not name.startswith("_"))


def _assigned(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if _named(node.value) == "self":
                yield node.attr


def family_of(tree: ast.Module, name: str) -> list[ast.ClassDef]:
    """The class and its bases, as far as the file has them."""
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    found, waiting = [], [name]
    while waiting:
        node = classes.get(waiting.pop(0))
        if node is not None and node not in found:
            found.append(node)
            waiting += [_named(base) for base in node.bases]
    return found


def entry(source: str, place: Place, in_part: bool) -> dict[str, Any] | None:
    """The record of one name; None if the file does not define it."""
    tree = ast.parse(source)
    found: dict[str, Any] = {"source": place.file, "defined_as": place.name}
    if not in_part:
        found["sha256"] = hashlib.sha256(source.encode()).hexdigest()
    for item in tree.body:
        if isinstance(item, ast.FunctionDef) and item.name == place.name:
            return {**found, "parameters": parameters_of(item, is_bound=False)}
    class_name, _, method = place.name.partition(".")
    family = family_of(tree, class_name)
    if not family:
        return None
    if method:
        definitions = [
            item
            for node in family
            for item in node.body
            if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef) and item.name == method
        ]
        if not definitions:
            return None
        return {**found, "parameters": parameters_of(definitions[0])}
    constructors = [
        item
        for node in family[:1]
        for item in node.body
        if isinstance(item, ast.FunctionDef) and item.name == "__init__"
    ]
    parameters = parameters_of(constructors[0]) if constructors else fields_of(family)
    return {**found, "parameters": parameters, "attributes": attributes_of(family)}


def record(read: Any, package: str, version: str, read_from: str, in_part: bool) -> dict[str, Any]:
    """The record of a package. `read` gives a file's text, or None. Raises SystemExit if a file
    lacks a name, unless it was read in part."""
    names: dict[str, Any] = {}
    for name, place in PLACES[package].items():
        source = read(place.file)
        found = None if source is None else entry(source, place, in_part)
        if found is not None:
            names[name] = found
        elif not in_part:
            raise SystemExit(f"{package} {version}: {place.file} does not define {place.name}")
    return {
        "package": package,
        "version": version,
        "read_from": read_from,
        "in_part": in_part,
        "names": names,
    }


def text_of(found: dict[str, Any]) -> str:
    """JSON with a line for each name, so that differences between versions can be read."""
    head = {key: value for key, value in found.items() if key != "names"}
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in found["names"].items()]
    return json.dumps(head)[:-1] + ', "names": {\n' + ",\n".join(lines) + "\n}}\n"


def _open(given: str) -> tuple[Any, str, str, str]:
    """Reads a file's text by name; package, version, and what was read."""
    if Path(given).is_dir():
        folder = Path(given)
        package = next(name for name in PLACES if (folder / name).is_dir())

        def read_folder(name: str) -> str | None:
            path = folder / name
            return path.read_text("utf-8") if path.exists() else None

        return read_folder, package, "", folder.name
    is_address = given.startswith(("https:", "http:"))
    file = io.BufferedReader(RangedFile(given), _CHUNK_BYTES) if is_address else Path(given)
    archive = zipfile.ZipFile(file)
    members = set(archive.namelist())
    package = next(name for name in PLACES if f"{name}/__init__.py" in members)
    wheel = given.rpartition("/")[2]
    version = wheel.split("-")[1]

    def read_wheel(name: str) -> str | None:
        return archive.read(name).decode() if name in members else None

    return read_wheel, package, version, f"wheel {wheel}"


def main(arguments: list[str] | None = None) -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m tools.engine_signatures")
    parser.add_argument("packages", nargs="+", metavar="WHEEL_OR_FOLDER")
    parser.add_argument("--out", type=Path, default=FOLDER)
    parser.add_argument("--version", default="", help="of a folder")
    parser.add_argument("--in-part", default="", help="where the files of a folder were read")
    given = parser.parse_args(arguments)
    for package_path in given.packages:
        read, package, version, read_from = _open(package_path)
        version = version or given.version
        if not version:
            raise SystemExit(f"{package_path} does not say its version; add --version")
        found = record(read, package, version, given.in_part or read_from, bool(given.in_part))
        path = given.out / f"{package}-{version}.json"
        path.write_text(text_of(found), "utf-8")
        sys.stdout.write(f"{path}: {len(found['names'])} names of {package} {version}\n")


if __name__ == "__main__":
    main()
