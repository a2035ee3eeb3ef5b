"""The model that all systems embed with: a folder of sentence-transformers, its values float32.

The model was trained on 256 tokens of a text, and has positions for 512: so many are computed here
by everybody.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Final

from outrider.models.catalog import lookup
from outrider.models.embedding_folder import EmbeddingFolder
from outrider.models.folder import checkpoint_extents, unpacked
from outrider.models.store import ModelStore, default_root

NAME: Final = "all-minilm-l6-v2"
MAX_TOKENS: Final = 512


def write_folder(home: Path) -> tuple[Path, EmbeddingFolder]:
    """Write it below `home`. Raises ModelStoreError where the model cannot be had."""
    spec, store = lookup(NAME), ModelStore(default_root())
    artifact = store.ensure(spec.source, sha256=spec.sha256)
    folder = home / "model"
    shutil.copytree(unpacked(artifact, store), folder, ignore=shutil.ignore_patterns(".*"))
    (extent,) = checkpoint_extents(artifact.path)
    with extent.path.open("rb") as archive:
        archive.seek(extent.offset)
        (folder / "model.safetensors").write_bytes(archive.read(extent.num_bytes))
    lengths = folder / "sentence_bert_config.json"
    told = json.loads(lengths.read_text(encoding="utf-8"))
    lengths.write_text(json.dumps({**told, "max_seq_length": MAX_TOKENS}), encoding="utf-8")
    own = ModelStore(home / "store")
    return folder, EmbeddingFolder(own.ensure(f"dir:{folder}"), own)
