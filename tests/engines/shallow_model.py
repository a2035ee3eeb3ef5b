"""The default model cut down to its first layers: every size and kernel of the real one, a fraction
of its time. It writes no sense, so what texts say is tested on the whole one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import gguf
import openvino as ov

from outrider.engines.config import EngineConfig
from outrider.engines.openvino.convert import ConvertedModel, converted
from outrider.engines.openvino.engine import OpenVinoEngine
from outrider.models.catalog import DEFAULT_MODEL, ModelSpec
from outrider.models.disk.files import file_sha256
from outrider.models.gguf_file import open_gguf
from outrider.models.store import ModelStore
from tests.models.gguf_files import write_out

NUM_LAYERS = 4


@dataclass(frozen=True, slots=True)
class ShallowModel:
    """The file, and a store that holds what is made from it."""

    file: Path
    spec: ModelSpec
    store: ModelStore

    @property
    def converted(self) -> ConvertedModel:
        return converted(self.spec, self.store)

    def load(self, config: EngineConfig) -> OpenVinoEngine:
        return OpenVinoEngine(self.converted, config)


def computes_in_bf16() -> bool:
    """Whether this CPU has a second precision besides f32."""
    return "BF16" in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


def make_shallow(source: ModelStore, folder: Path) -> ShallowModel:
    """The cut model in `folder`, written if it is not there."""
    file = folder / "shallow.gguf"
    if not file.exists():
        folder.mkdir()
        whole = source.ensure(DEFAULT_MODEL.source, sha256=DEFAULT_MODEL.sha256).path
        write_shallow(whole, file, NUM_LAYERS)
    spec = ModelSpec("shallow", f"file:{file}", file_sha256(file))
    return ShallowModel(file, spec, ModelStore(folder / "store"))


def write_shallow(source: Path, out: Path, num_layers: int) -> Path:
    """A copy of a model's file without the layers from `num_layers` on."""
    reader = open_gguf(source)
    architecture = str(reader.fields["general.architecture"].contents())
    writer = gguf.GGUFWriter(out, architecture)
    for name, field in reader.fields.items():
        if name == f"{architecture}.block_count":
            writer.add_block_count(num_layers)
        elif name != "general.architecture" and not name.startswith("GGUF."):
            kind, *inner = field.types
            writer.add_key_value(name, field.contents(), kind, inner[-1] if inner else None)
    kept = {f"blk.{layer}" for layer in range(num_layers)}
    for tensor in reader.tensors:
        if not tensor.name.startswith("blk.") or tensor.name.rsplit(".", 2)[0] in kept:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    write_out(writer)
    return out
