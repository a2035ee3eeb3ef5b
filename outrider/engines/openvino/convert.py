"""From a GGUF file to OpenVINO's intermediate representation.

The converter (openvino_genai's GGUF reader) gives the graph; it builds a whole pipeline on the
way, so it runs in a child process, which gives the memory back. The weights are the file's own,
stored as the layout says. What is saved also runs under openvino_genai's own pipelines.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path

import openvino as ov

from outrider.engines.base import Ids
from outrider.engines.openvino.layouts import (
    AS_CONVERTED,
    DEFAULT_LAYOUT,
    Layout,
    lay_out_weights,
    layout_of,
)
from outrider.engines.openvino.repacking import RepackedModel
from outrider.errors import EngineError, UnsupportedModelError
from outrider.models.catalog import ModelSpec
from outrider.models.gguf_file import content_of, open_gguf
from outrider.models.store import ModelStore

CONVERTER_VERSION = 2
"""A new number whenever the files or what they mean change."""
_FACTS = "facts.json"
_GRAPH = "openvino_model.xml"
_TIMEOUT_S = 900.0
_CHILD = """
import sys
import openvino_genai
openvino_genai.LLMPipeline(sys.argv[1], "CPU", enable_save_ov_model=True)
"""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What the engine must know of a model besides its graph."""

    vocabulary_size: int
    max_context_tokens: int
    layout: str = AS_CONVERTED
    """How the graph stores matrices: a name of graph.layouts."""


@dataclass(frozen=True, slots=True)
class ConvertedModel:
    """A directory with openvino_model.xml/.bin and its facts."""

    directory: Path
    facts: ModelFacts
    head_ids: Ids | None = None
    """[r] what the head's rows stand for, ascending; None: row j is id j."""

    @property
    def graph(self) -> Path:
        """The stateful model."""
        return self.directory / _GRAPH

    @property
    def weights(self) -> Path:
        """The constants of the graph."""
        return self.graph.with_suffix(".bin")


def converted(spec: ModelSpec, store: ModelStore) -> ConvertedModel:
    """The converted model; fetched and converted if the store lacks it.

    Raises what ModelStore.ensure raises, and EngineError if the conversion fails.
    """
    artifact = store.ensure(spec.source, sha256=spec.sha256)
    directory = store.derived(
        artifact,
        derived_name(DEFAULT_LAYOUT),
        lambda folder: convert(artifact.path, folder, DEFAULT_LAYOUT),
    )
    return read_converted(directory)


def read_converted(directory: Path, head_ids: Ids | None = None) -> ConvertedModel:
    """What `convert` made."""
    facts = ModelFacts(**json.loads((directory / _FACTS).read_text()))
    return ConvertedModel(directory, facts, head_ids)


def derived_name(layout: str) -> str:
    """Names all that the conversion depends on besides the model file."""
    packages = ("openvino", "openvino-genai")
    versions = [f"{name}-{version(name)}" for name in packages]
    return "-".join([f"ir-v{CONVERTER_VERSION}", layout, *versions])


def convert(source: Path, folder: Path, layout: str) -> None:
    """Convert a GGUF file into `folder`.

    Raises ConfigError for an unknown layout, UnsupportedModelError for a model that cannot be
    converted, EngineError with the converter's last words if it fails.
    """
    how = layout_of(layout)
    facts = replace(read_facts(source), layout=layout)
    with tempfile.TemporaryDirectory(dir=folder) as work:
        repacked = run_converter(source, Path(work), repack=how.pack is not None)
        save_graph(Path(work), folder, how, repacked)
        for path in Path(work).glob("openvino_*tokenizer.*"):
            path.rename(folder / path.name)
    (folder / _FACTS).write_text(json.dumps(asdict(facts)))


def run_converter(source: Path, work: Path, *, repack: bool) -> RepackedModel | None:
    """Have the converter write a graph, and the tokenizer, into `work`: of the file itself, or of
    its copy in Q8_0, whose matrices are then returned. Raises as `convert`."""
    copy = work / "model.gguf"  # the converter writes beside its input and goes by the suffix
    repacked = None
    if repack:
        repacked = RepackedModel(source, copy)
    else:
        copy.symlink_to(source.resolve())
    _run_child(copy)
    copy.unlink()
    return repacked


def save_graph(work: Path, folder: Path, layout: Layout, repacked: RepackedModel | None) -> None:
    """Write the graph in `work` into `folder`, its weights as the layout says."""
    model = ov.Core().read_model(work / _GRAPH)
    lay_out_weights(model, layout, repacked)
    ov.save_model(model, folder / _GRAPH, compress_to_fp16=False)


def read_facts(source: Path) -> ModelFacts:
    """Read them from the GGUF metadata. Raises UnsupportedModelError if they are not there, and
    ArtifactCorruptError if it is no GGUF file."""
    reader = open_gguf(source)
    architecture = content_of(reader, "general.architecture")
    context = f"{architecture}.context_length"
    try:
        return ModelFacts(
            vocabulary_size=len(reader.fields["tokenizer.ggml.tokens"].data),
            max_context_tokens=int(content_of(reader, context)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UnsupportedModelError(
            f"the model file lacks tokenizer.ggml.tokens or {context}; use a complete GGUF file"
        ) from error


def _run_child(source: Path) -> None:
    try:
        child = subprocess.run(
            [sys.executable, "-c", _CHILD, str(source)],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise EngineError(f"the model was not converted within {_TIMEOUT_S:.0f} s") from error
    if child.returncode != 0 or not (source.parent / _GRAPH).exists():
        words = child.stderr.strip().splitlines()[-1:] or [f"exit status {child.returncode}"]
        killed = child.returncode < 0  # for want of memory, as a rule: that passes
        kind = EngineError if killed else UnsupportedModelError
        raise kind(f"the model cannot be converted: {words[0]}")
