"""Converts a GGUF file, or a checkpoint written as one, to OpenVINO's intermediate representation.

The converter (openvino_genai's GGUF reader) gives the graph. It builds a whole pipeline on the way,
so it runs in a child process, whose memory is freed at its end. Graphs of Gemma 3 and gpt-oss,
which the converter does not know, are built here (gemma_graph, gpt_oss_graph). The weights are the
file's own, stored by the layout. What is saved also runs under openvino_genai's own pipelines.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Final

import openvino as ov
import structlog

from outrider.engines.base import Ids
from outrider.engines.footprint import footprint
from outrider.engines.free_memory import known_free_memory
from outrider.engines.gguf_decoder.architectures import check_architecture
from outrider.engines.gguf_decoder.gemma import GEMMA3
from outrider.engines.gguf_decoder.gpt_oss import GPT_OSS
from outrider.engines.gguf_decoder.rotary import read_factors
from outrider.engines.load_stage import LoadStage, ReportStage, ignore_stage
from outrider.engines.model_size import size_of
from outrider.engines.openvino.gemma_graph import save_gemma
from outrider.engines.openvino.gpt_oss_graph import save_gpt_oss
from outrider.engines.openvino.layouts import (
    AS_CONVERTED,
    BITS_OF_LAYOUT,
    DEFAULT_LAYOUT,
    Layout,
    lay_out_weights,
    layout_of,
)
from outrider.engines.openvino.repacking import NO_ERROR, RepackedModel, WeightError
from outrider.engines.openvino.rotary import scale_frequencies
from outrider.errors import EngineError, UnsupportedModelError
from outrider.models import checkpoint_gguf
from outrider.models.catalog import ModelSpec
from outrider.models.checkpoint_gguf import Checkpoint
from outrider.models.folder import holds_checkpoint, is_archive, unpacked
from outrider.models.folder import read_facts as read_folder_facts
from outrider.models.gguf_file import content_of, open_gguf
from outrider.models.store import ModelStore

CONVERTER_VERSION = 3
"""Raised whenever the files or their meaning change."""
_log = structlog.get_logger()

_BUILT_HERE: Final = {GEMMA3: save_gemma, GPT_OSS: save_gpt_oss}
"""Architectures that the converter does not know, and what writes the graph of a copy in Q8_0."""
_FACTS = "facts.json"
_GRAPH = "openvino_model.xml"
_TIMEOUT_S = 900.0
_CHILD = """
import pathlib
import sys
sys.modules["openvino_telemetry"] = None  # as outrider.engines.openvino says
import openvino
import openvino_genai
try:
    openvino_genai.LLMPipeline(sys.argv[1], "CPU", enable_save_ov_model=True)
except RuntimeError:
    # It compiles what it saved, which fails for some small models and is not needed.
    graph = pathlib.Path(sys.argv[1]).with_name("openvino_model.xml")
    if not graph.exists():
        raise
    openvino.Core().read_model(graph)
"""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Facts about a model that the engine needs besides its graph."""

    vocabulary_size: int
    max_context_tokens: int
    layout: str = AS_CONVERTED
    """How the graph stores matrices: a name of graph.layouts."""
    weight_error: float | None = None
    """RMS of the differences between the weights served and the file's, over the RMS of the
    file's; None: not measured."""
    worst_matrix: str = ""
    """The matrix with the largest such error of its own."""
    worst_weight_error: float | None = None
    """Error of the worst matrix."""


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


def converted(
    spec: ModelSpec,
    store: ModelStore,
    layout: str = DEFAULT_LAYOUT,
    *,
    kv_bytes: int = 0,
    report: ReportStage = ignore_stage,
) -> ConvertedModel:
    """The converted model; fetched and converted if the store does not have it. OpenVINO's folders
    have a layout of their own. `report` is called where a conversion begins.

    Raises what ModelStore.ensure raises, EngineError if the conversion fails, and
    InsufficientMemoryError, before minutes of conversion, if the model could not be loaded with a
    KV pool of `kv_bytes` (0: the smallest).
    """
    artifact = store.ensure(spec.source, sha256=spec.sha256)
    files = unpacked(artifact, store) if is_archive(artifact.path) else None
    if files is not None and not holds_checkpoint(files):
        return read_folder(files)
    name = derived_name(layout)
    if files is not None:
        name = f"{name}-checkpoint-{checkpoint_gguf.VERSION}"

    def build(folder: Path) -> None:
        size = size_of(spec, store)
        weights_bytes = size.weights_bytes_of(BITS_OF_LAYOUT.get(layout, 8))
        needed = footprint(weights_bytes, size.vocabulary_size, kv_bytes, process_bytes=0)
        needed.check(known_free_memory())
        report(LoadStage.CONVERT)
        if files is None:
            convert(artifact.path, folder, layout)
            return
        source = folder / "checkpoint.gguf"
        Checkpoint(files, artifact.path).write_gguf(source)
        convert(source, folder, layout)
        source.unlink()

    return read_converted(store.derived(artifact, name, build))


def read_converted(directory: Path, head_ids: Ids | None = None) -> ConvertedModel:
    """The model that `convert` wrote into `directory`."""
    facts = ModelFacts(**json.loads((directory / _FACTS).read_text()))
    return ConvertedModel(directory, facts, head_ids)


def read_folder(directory: Path) -> ConvertedModel:
    """A folder with a graph of somebody else's, served as it is.

    Raises UnsupportedModelError for a graph that is no language model with a state, or that does
    not fit the folder's config.json.
    """
    facts = read_folder_facts(directory)
    try:
        model = ov.Core().read_model(directory / _GRAPH)
        inputs = {name for each in model.inputs for name in each.get_names()}
        logits = next(each for each in model.outputs if "logits" in each.get_names())
        width = logits.get_partial_shape()[-1]
        size = width.get_length() if width.is_static else 0
    except (RuntimeError, StopIteration) as error:
        why = str(error) or "it has no logits"
        raise UnsupportedModelError(
            f"{_GRAPH} is no whole language model: {why}; export it again"
        ) from error
    if "input_ids" not in inputs or not model.get_sinks():
        raise UnsupportedModelError(
            f"{_GRAPH} takes no input_ids or keeps no state; export it as a stateful model of text"
        )
    if size != facts.vocabulary_size:
        raise UnsupportedModelError(
            f"{_GRAPH} scores {size} ids, config.json says {facts.vocabulary_size}; their files do "
            "not belong together"
        )
    return ConvertedModel(
        directory, ModelFacts(facts.vocabulary_size, facts.max_context_tokens, AS_CONVERTED)
    )


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
    reader = open_gguf(source)
    check_architecture(reader)
    if how.pack is None and read_factors(reader) is not None:
        raise UnsupportedModelError(f"scaled positions are not served with the layout {layout}")
    facts = replace(read_facts(source), layout=layout)
    with tempfile.TemporaryDirectory(dir=folder) as work:
        repacked = run_converter(source, Path(work), repack=how.pack is not None)
        errors = save_graph(Path(work), folder, how, repacked)
        if repacked is None or repacked.has_tokenizer:
            for path in Path(work).glob("openvino_*tokenizer.*"):
                path.rename(folder / path.name)
    facts = _with_errors(facts, errors)
    (folder / _FACTS).write_text(json.dumps(asdict(facts)))
    _log.info(
        "model_converted",
        layout=layout,
        weight_error=facts.weight_error,
        worst_matrix=facts.worst_matrix,
        worst_weight_error=facts.worst_weight_error,
    )


def _with_errors(facts: ModelFacts, errors: Mapping[str, WeightError]) -> ModelFacts:
    if not errors:
        return facts
    worst = max(errors, key=lambda name: errors[name].relative)
    return replace(
        facts,
        weight_error=sum(errors.values(), NO_ERROR).relative,
        worst_matrix=worst,
        worst_weight_error=errors[worst].relative,
    )


def run_converter(source: Path, work: Path, *, repack: bool) -> RepackedModel | None:
    """Have the converter write a graph and the tokenizer into `work`, from the file itself or, with
    `repack`, from its copy in Q8_0, whose matrices are returned. Those in
    _BUILT_HERE are always made from the copy and without tokenizer. Raises as `convert`."""
    copy = work / "model.gguf"  # the converter writes beside its input and goes by the suffix
    save = _BUILT_HERE.get(str(content_of(open_gguf(source), "general.architecture")))
    if save is not None:
        rewritten = RepackedModel(source, copy)
        save(copy, work / _GRAPH)
        copy.unlink()
        return rewritten
    repacked = None
    if repack:
        repacked = RepackedModel(source, copy)
    else:
        copy.symlink_to(source.resolve())
    _run_child(copy)
    copy.unlink()
    return repacked


def save_graph(
    work: Path, folder: Path, layout: Layout, repacked: RepackedModel | None
) -> dict[str, WeightError]:
    """Write the graph in `work` into `folder`, with its weights stored by the layout; returns the
    error of each matrix against the file."""
    model = ov.Core().read_model(work / _GRAPH)
    errors = lay_out_weights(model, layout, repacked)
    if repacked is not None and repacked.rotary is not None:
        scale_frequencies(model, repacked.rotary)
    ov.save_model(model, folder / _GRAPH, compress_to_fp16=False)
    return errors


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
            [sys.executable, "-P", "-c", _CHILD, str(source)],
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
