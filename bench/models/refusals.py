"""Models that cannot be served, offered to a store whose other model is being served."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import gguf

from bench.harness.model_folder import write_folder
from bench.models.engine_worker import engine_worker
from bench.models.measuring import Ask, ask_replica, reference
from bench.models.replicas import replica_process
from bench.models.subjects import file_spec, know, tiny_prompt, write_tiny
from outrider.engines.free_memory import free_memory
from outrider.engines.openvino.convert import converted
from outrider.errors import (
    ArtifactCorruptError,
    ConfigError,
    InsufficientMemoryError,
    InvalidRequestError,
    OutriderError,
    SourceError,
    UnsupportedModelError,
)
from outrider.models.catalog import ModelSpec, lookup
from outrider.models.chat import Message
from outrider.models.sources.members import GRAPH, TOKENIZER
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import load_vocabulary
from outrider.sampling.params import SamplingParams
from services.inference.app import load_model
from services.inference.config import InferenceConfig

GOOD: Final = "tiny-that-serves"
_BOTTOMLESS: Final = "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"
_FAR: Final = 1 << 40
"""An offset or a length beyond every file here."""


@dataclass(frozen=True, slots=True)
class BadInput:
    """One, and how it should end."""

    name: str
    make: Callable[[Path], ModelSpec]
    """Writes it into an empty folder."""
    wanted: tuple[type[OutriderError], ...]
    is_fetched: bool = True
    """Whether the bytes are what was asked for: then they stay in the store, under their digest,
    and only what is built from them is refused."""
    kv_bytes: int = 1 << 20
    chat: bool = False
    """Whether only a chat shows it."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """How it ended."""

    name: str
    error: str
    """The typed error's reason; "" without one."""
    left: tuple[str, ...]
    """What the store kept, and should not."""
    other_serves: bool
    as_wanted: bool


async def provoke(work: Path) -> list[Refusal]:
    """Offer each to a store in `work`, beside a replica of a good model of the same store."""
    store, bad = await asyncio.to_thread(_make, work)
    ask = Ask(tuple(tiny_prompt(1)), SamplingParams(max_tokens=8, ignore_eos=True))
    async with replica_process(GOOD, {"max_fixed_rows": 0}) as replica:
        await replica.ready()
        async with engine_worker(GOOD, max_fixed_rows=0) as worker:
            truth = await reference(worker, ask)
        vocabulary = load_vocabulary(lookup(GOOD), store)
        found = []
        for case, spec in bad:
            error = await asyncio.to_thread(_try, case, spec)
            left = _left(store, spec, case)
            [again] = await ask_replica(replica, vocabulary, [ask])
            serves = again == truth
            good_end = isinstance(error, case.wanted) and not left and serves
            reason = error.reason if error is not None else ""
            found.append(Refusal(case.name, reason, left, serves, good_end))
    return found


def _make(work: Path) -> tuple[ModelStore, list[tuple[BadInput, ModelSpec]]]:
    """Write all files, and have them known by name."""
    work.mkdir()
    store = ModelStore(work / "store")
    good = file_spec(GOOD, write_tiny(work / "good.gguf", "llama"))
    bad = []
    for case in cases():
        folder = work / case.name.replace(" ", "-")
        folder.mkdir()
        bad.append((case, case.make(folder)))
    know([good, *(spec for _, spec in bad)], work, store)
    return store, bad


def cases() -> tuple[BadInput, ...]:
    """All of them."""
    broken = (ArtifactCorruptError, UnsupportedModelError)
    return (
        BadInput("a truncated file", _truncated, broken),
        BadInput("a size that lies", _lying("dims"), broken),
        BadInput("an offset that lies", _lying("offset"), broken),
        BadInput("a type that lies", _lying("type"), broken),
        BadInput(
            "a template without an end", _endless, (InvalidRequestError,), chat=True
        ),
        BadInput("a folder without its tokenizer", _without(TOKENIZER), (SourceError,), False),
        BadInput("a folder without its graph", _without(GRAPH), (SourceError,), False),
        BadInput("another digest", _other_digest, (ArtifactCorruptError,), False),
        BadInput(
            "a tokenizer that cannot be exact", _strange_tokenizer, (ConfigError,),
        ),
        BadInput(
            "more than the memory", _plain, (InsufficientMemoryError,),
            kv_bytes=2 * free_memory().num_bytes,
        ),
    )  # fmt: skip


def _try(case: BadInput, spec: ModelSpec) -> OutriderError | None:
    """Load it as a replica does; None if that went well."""
    config = InferenceConfig(model=spec.name, kv_bytes=case.kv_bytes, max_fixed_rows=0)
    try:
        if case.chat:
            vocabulary = load_vocabulary(lookup(spec.name), ModelStore(default_root()))
            vocabulary.encode_chat([Message("user", "a b")])
            return None
        load_model(config).engine.close()
    except OutriderError as error:
        return error
    return None


def _left(store: ModelStore, spec: ModelSpec, case: BadInput) -> tuple[str, ...]:
    """Half-done work, a conversion, and what was fetched if it was not what was asked for."""
    found = [path for name in ("tmp", "partial") for path in (store.root / name).rglob("*")]
    sha256 = store.recorded(spec.source)
    if sha256:
        found += (store.root / "derived" / sha256).glob("ir-v*")
    kept = [str(path.relative_to(store.root)) for path in found]
    return tuple(kept + ([spec.source] if sha256 and not case.is_fetched else []))


def _plain(folder: Path) -> ModelSpec:
    return file_spec("larger", write_tiny(folder / "m.gguf", "qwen2"))


def _truncated(folder: Path) -> ModelSpec:
    path = write_tiny(folder / "m.gguf", "llama")
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    return file_spec("truncated", path)


def _lying(what: str) -> Callable[[Path], ModelSpec]:
    """A field of the first tensor's entry in the header says something else than is there."""

    def make(folder: Path) -> ModelSpec:
        path = write_tiny(folder / "m.gguf", "llama")
        reader = gguf.GGUFReader(path, "r+")
        _, _, _, dims, kind, offset = reader.tensors[0].field.parts
        if what == "dims":
            dims[0] = _FAR
        elif what == "offset":
            offset[0] = _FAR
        else:
            kind[0] = int(gguf.GGMLQuantizationType.Q4_K)
        reader.data.flush()
        return file_spec(f"lying-{what}", path)

    return make


def _endless(folder: Path) -> ModelSpec:
    path = write_tiny(folder / "m.gguf", "llama", chat_template=_BOTTOMLESS)
    return file_spec("endless", path)


def _strange_tokenizer(folder: Path) -> ModelSpec:
    path = write_tiny(folder / "m.gguf", "llama", pre="of-our-own")
    return file_spec("strange", path)


def _other_digest(folder: Path) -> ModelSpec:
    path = write_tiny(folder / "m.gguf", "llama")
    return replace(file_spec("other-digest", path), sha256="0" * 64)


def _without(piece: str) -> Callable[[Path], ModelSpec]:
    """A folder that lacks a file."""

    def make(folder: Path) -> ModelSpec:
        machine = ModelStore(folder / "made")
        spec = file_spec("whole", write_tiny(folder / "m.gguf", "llama"))
        model = converted(spec, machine)
        whole = write_folder(folder / "model", model, load_vocabulary(spec, machine))
        (whole / piece).unlink()
        return ModelSpec(f"without-{piece.partition('.')[0].replace('_', '-')}", f"dir:{whole}")

    return make
