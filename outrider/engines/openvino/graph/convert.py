"""From a GGUF file to OpenVINO's intermediate representation, in a process of its own.

The converter (openvino_genai's GGUF reader) builds a whole pipeline on the way; a child process
gives its memory back. What it saves also runs under openvino_genai's own pipelines.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

import gguf

from outrider.engines.base import Ids
from outrider.errors import EngineError, UnsupportedModelError
from outrider.models.catalog import ModelSpec
from outrider.models.store import ModelStore

CONVERTER_VERSION = 1
"""A new number whenever the files or what they mean change."""
_FACTS = "facts.json"
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


@dataclass(frozen=True, slots=True)
class ConvertedModel:
    """A directory with openvino_model.xml/.bin and its facts."""

    directory: Path
    facts: ModelFacts
    head_ids: Ids | None = None
    """[r] what the head's rows stand for, ascending; None: row j is id j."""

    @property
    def graph(self) -> Path:
        """The stateful model, as the converter saved it."""
        return self.directory / "openvino_model.xml"


def converted(spec: ModelSpec, store: ModelStore) -> ConvertedModel:
    """The converted model; fetched and converted if the store lacks it.

    Raises what ModelStore.ensure raises, and EngineError if the conversion fails.
    """
    artifact = store.ensure(spec.source, sha256=spec.sha256)
    directory = store.derived(
        artifact, derived_name(), lambda folder: convert(artifact.path, folder)
    )
    return read_converted(directory)


def read_converted(directory: Path, head_ids: Ids | None = None) -> ConvertedModel:
    """What `convert` made."""
    facts = ModelFacts(**json.loads((directory / _FACTS).read_text()))
    return ConvertedModel(directory, facts, head_ids)


def derived_name() -> str:
    """Names all that the conversion depends on besides the model file."""
    packages = ("openvino", "openvino-genai")
    return "-".join([f"ir-v{CONVERTER_VERSION}", *(f"{name}-{version(name)}" for name in packages)])


def convert(source: Path, folder: Path) -> None:
    """Convert a GGUF file into `folder`. Raises EngineError with the converter's last words."""
    facts = read_facts(source)
    # The converter writes beside its input and goes by its suffix.
    with tempfile.TemporaryDirectory(dir=folder) as work:
        link = Path(work) / "model.gguf"
        link.symlink_to(source.resolve())
        _run_converter(link)
        link.unlink()
        for path in Path(work).iterdir():
            path.rename(folder / path.name)
    (folder / _FACTS).write_text(json.dumps(asdict(facts)))


def read_facts(source: Path) -> ModelFacts:
    """Read them from the GGUF metadata. Raises UnsupportedModelError if they are not there."""
    try:
        reader = gguf.GGUFReader(source)
        architecture = reader.fields["general.architecture"].contents()
        return ModelFacts(
            vocabulary_size=len(reader.fields["tokenizer.ggml.tokens"].data),
            max_context_tokens=int(reader.fields[f"{architecture}.context_length"].contents()),
        )
    except KeyError as error:
        raise UnsupportedModelError(
            f"the model file lacks {error}; use a complete GGUF file"
        ) from error
    except (ValueError, IndexError) as error:
        raise UnsupportedModelError(f"the model file is no GGUF file: {error}") from error


def _run_converter(source: Path) -> None:
    try:
        child = subprocess.run(
            [sys.executable, "-c", _CHILD, str(source)],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise EngineError(f"the model was not converted within {_TIMEOUT_S:.0f} s") from error
    if child.returncode != 0 or not (source.parent / "openvino_model.xml").exists():
        words = child.stderr.strip().splitlines()[-1:] or [f"exit status {child.returncode}"]
        killed = child.returncode < 0  # for want of memory, as a rule: that passes
        kind = EngineError if killed else UnsupportedModelError
        raise kind(f"the model cannot be converted: {words[0]}")
