"""The tokenizer built from GGUF metadata against OpenVINO's own conversion of the same file.

OpenVINO GenAI reads the GGUF and writes a tokenizer model for another engine (openvino_tokenizers:
PCRE2, own BPE), so agreement is evidence. It is known to differ in four ways, which are left out
or compared apart: it always recognises control tokens in text; it writes the unknown token for
bytes that the vocabulary lacks, where the model's own tokenizer (and llama.cpp) drops them before
merging; it loses a NUL at the end of a text; and its regex engine still counts U+180E, which
Unicode 6.3 made a format character, as white space.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import openvino
import openvino_genai
import openvino_tokenizers  # noqa: F401  (registers the tokenizer's operations)
import pytest
from tokenizers import Tokenizer

from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.store import ModelStore
from outrider.models.vocabulary import Vocabulary
from tests.models import corpus

Encode = Callable[[str], list[int]]


def convert(gguf: Path, folder: Path) -> None:
    """Writes OpenVINO's tokenizer of `gguf` into `folder`."""
    with tempfile.TemporaryDirectory() as scratch:
        # The converter goes by the file's suffix and writes beside it.
        model = Path(scratch) / "model.gguf"
        model.symlink_to(gguf)
        openvino_genai.LLMPipeline(str(model), "CPU", enable_save_ov_model=True)
        for path in Path(scratch).glob("openvino_tokenizer.*"):
            shutil.copy(path, folder)


@pytest.fixture(scope="module")
def openvino_encode(model_store: ModelStore) -> Encode:
    artifact = model_store.ensure(DEFAULT_MODEL.source, sha256=DEFAULT_MODEL.sha256)
    folder = model_store.derived(
        artifact, "test-openvino-tokenizer", lambda empty: convert(artifact.path, empty)
    )
    compiled = openvino.Core().compile_model(folder / "openvino_tokenizer.xml", "CPU")

    def encode(text: str) -> list[int]:
        ids: list[int] = compiled([text])["input_ids"][0].tolist()
        return ids

    return encode


@pytest.mark.model
def test_the_corpus_has_the_same_ids(vocabulary: Vocabulary, openvino_encode: Encode) -> None:
    texts = [text.rstrip("\0") for text in corpus.ORDINARY + corpus.mixtures(600)]
    wrong = [text for text in texts if vocabulary.encode(text) != openvino_encode(text)]
    assert wrong == []


@pytest.mark.model
def test_every_code_point_of_the_basic_plane_has_the_same_ids(
    vocabulary: Vocabulary, openvino_encode: Encode
) -> None:
    left_out = {0x04, 0x06, 0x13, 0x14, 0x16, 0x1D, 0x180E, *range(0xD800, 0xE000)}
    points = [point for point in range(0x10000) if point not in left_out]
    wrong = []
    for start in range(0, len(points), 64):
        text = "".join(f"a{chr(p)}b {chr(p)}1 \n{chr(p)}" for p in points[start : start + 64])
        if vocabulary.encode(text) != openvino_encode(text):
            wrong.append(hex(points[start]))
    assert wrong == []


@pytest.mark.model
def test_control_tokens_match_where_they_are_recognised(
    vocabulary: Vocabulary, openvino_encode: Encode
) -> None:
    recognising = Tokenizer.from_str(vocabulary.tokenizer_json)
    for text in corpus.SPECIAL:
        ids = openvino_encode(text)
        assert recognising.encode(text, add_special_tokens=False).ids == ids
