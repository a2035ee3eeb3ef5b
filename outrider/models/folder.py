"""Models in a folder of several files, as hubs have them; in the store one archive, unpacked and
verified file by file before it is used. Checkpoints (safetensors) are read where they lie in it."""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, TypeGuard

from outrider.errors import ArtifactCorruptError, UnsupportedModelError
from outrider.models.bpe import VocabularyDefinition
from outrider.models.safetensors_file import Extent
from outrider.models.sources.members import (
    CHECKPOINT_INDEX,
    CONFIG,
    GENERATION_CONFIG,
    MAX_INDEX_BYTES,
    TEMPLATE,
    TEMPLATE_JSON,
    TOKENIZER,
    TOKENIZER_CONFIG,
    WEIGHTS,
    is_member,
    is_weights_file,
    missing_members,
)
from outrider.models.strict_json import read_object
from outrider.models.suggested_sampling import of_generation_config
from outrider.models.tokenizer_json import ChatParts, read_tokenizer_json

if TYPE_CHECKING:
    from outrider.models.store import Artifact, ModelStore

_DERIVED_NAME: Final = "folder-v1"
_MAX_JSON_BYTES: Final = 256 << 20
_MAGIC_AT: Final = 257
_MAGIC: Final = b"ustar"
_PLAIN: Final = (tarfile.REGTYPE, tarfile.AREGTYPE)


@dataclass(frozen=True, slots=True)
class FolderFacts:
    """Facts about the model from a folder's config.json."""

    vocabulary_size: int
    max_context_tokens: int


def is_archive(path: Path) -> bool:
    """Whether an artifact is a folder's archive, by its first bytes."""
    with path.open("rb") as file:
        file.seek(_MAGIC_AT)
        return file.read(len(_MAGIC)) == _MAGIC


def unpacked(artifact: Artifact, store: ModelStore) -> Path:
    """The verified folder of an archive. Raises what ModelStore.derived and `unpack` raise."""
    return store.derived(artifact, _DERIVED_NAME, lambda folder: unpack(artifact.path, folder))


def unpack(archive: Path, folder: Path) -> None:
    """Write the archive's files into an empty folder; they must be exactly those of a model's
    folder. Checkpoints stay in the archive (`checkpoint_extents`). What is written has no more
    bytes than the archive: sparse members, whose holes take no room in it, are refused. Raises
    ArtifactCorruptError, UnsupportedModelError, OSError."""
    found = set[str]()
    with _named_faults():
        for member, content in _members(archive):
            found.add(member.name)
            if not is_weights_file(member.name):
                (folder / member.name).parent.mkdir(exist_ok=True)
                _copy(content, folder / member.name, member.size)
    if problems := missing_members(found, lambda: _index_of(folder)):
        raise ArtifactCorruptError(f"{problems[0]}; pull it again")


def checkpoint_extents(archive: Path) -> list[Extent]:
    """Position of each checkpoint file inside the archive. Raises ArtifactCorruptError."""
    with _named_faults():
        return [
            Extent(member.name, archive, member.offset_data, member.size)
            for member, _ in _members(archive)
            if is_weights_file(member.name)
        ]


def _copy(content: IO[bytes], path: Path, num_bytes: int) -> None:
    with path.open("xb") as file:
        shutil.copyfileobj(content, file, 1 << 20)
    if path.stat().st_size != num_bytes:
        raise ArtifactCorruptError(f"{path.name} of the archive is cut short")


@contextmanager
def _named_faults() -> Iterator[None]:
    """Turn errors from reading an archive into ArtifactCorruptError."""
    try:
        yield
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise ArtifactCorruptError(f"the archive is damaged ({error}); pull it again") from error


def holds_checkpoint(folder: Path) -> bool:
    """Whether an unpacked folder's weights are a checkpoint in its archive."""
    return not (folder / WEIGHTS).exists()


def _index_of(folder: Path) -> bytes:
    with (folder / CHECKPOINT_INDEX).open("rb") as file:
        return file.read(MAX_INDEX_BYTES + 1)


def _members(archive: Path) -> Iterator[tuple[tarfile.TarInfo, IO[bytes]]]:
    """Each file of an archive, once it is known to lie there plain and whole."""
    found = set[str]()
    whole_bytes = left_bytes = archive.stat().st_size
    with tarfile.open(archive, "r:") as members:
        for member in members:
            if member.name in found or not is_member(member.name):
                raise ArtifactCorruptError(
                    f"the archive holds {member.name[:100]!r}, which belongs to no model; "
                    "pull it again"
                )
            content = members.extractfile(member) if _is_plain(member) else None
            if content is None:
                raise ArtifactCorruptError(
                    f"{member.name} of the archive is no plain file; pull it again"
                )
            left_bytes -= member.size
            if left_bytes < 0:
                raise ArtifactCorruptError(
                    f"{member.name} of the archive has more bytes than are in it; pull it again"
                )
            found.add(member.name)
            yield member, content
            if member.offset_data + member.size > whole_bytes:
                raise ArtifactCorruptError(f"{member.name} of the archive is cut short")


def _is_plain(member: tarfile.TarInfo) -> bool:
    """Whether it lies in the archive as it is: TarInfo.isfile is true of sparse members too, and
    extended headers (pax) can give any member another size."""
    is_sparse = member.sparse is not None
    return member.type in _PLAIN and not is_sparse and not member.pax_headers and member.size >= 0


def read_facts(folder: Path) -> FolderFacts:
    """From config.json. Raises UnsupportedModelError if they are not there, ArtifactCorruptError
    for a damaged file."""
    config = read_config(folder)
    size, context = config.get("vocab_size"), config.get("max_position_embeddings")
    if not _is_count(size) or not _is_count(context):
        raise UnsupportedModelError(
            f"{CONFIG} lacks vocab_size or max_position_embeddings; only models of text alone "
            "can be served"
        )
    return FolderFacts(size, context)


def read_config(folder: Path) -> dict[str, Any]:
    """The parsed config.json. Raises ArtifactCorruptError."""
    return _read(folder / CONFIG)


def _is_count(value: object) -> TypeGuard[int]:
    return type(value) is int and 0 < value < 1 << 31


def read_definition(folder: Path) -> VocabularyDefinition:
    """The vocabulary, of as many ids as the model has. Raises ArtifactCorruptError, ConfigError for
    a tokenizer that cannot be built exactly, UnsupportedModelError."""
    text = _text(folder / TOKENIZER)
    return read_tokenizer_json(text, _chat_parts(folder), size=read_facts(folder).vocabulary_size)


def _chat_parts(folder: Path) -> ChatParts:
    tokenizer = _read(folder / TOKENIZER_CONFIG)
    stop_ids = list[int]()
    for name in (GENERATION_CONFIG, CONFIG):
        ids = _read(folder / name).get("eos_token_id")
        stop_ids += ids if isinstance(ids, list) else [] if ids is None else [ids]
    if not all(type(i) is int for i in stop_ids):
        raise ArtifactCorruptError("eos_token_id of the model's folder is no number")
    return ChatParts(
        template=_template(folder, tokenizer),
        bos_token=_token(tokenizer.get("bos_token")),
        eos_token=_token(tokenizer.get("eos_token")),
        adds_bos=_said(tokenizer, "add_bos_token"),
        adds_eos=bool(_said(tokenizer, "add_eos_token")),
        stop_ids=sorted(set(stop_ids)),
        sampling=of_generation_config(_read(folder / GENERATION_CONFIG)),
    )


def _template(folder: Path, tokenizer: dict[str, Any]) -> str:
    """A file of its own comes before the tokenizer's configuration."""
    if (folder / TEMPLATE).exists():
        return _text(folder / TEMPLATE)
    template = _read(folder / TEMPLATE_JSON).get("chat_template")
    template = tokenizer.get("chat_template") if template is None else template
    if isinstance(template, list):
        named = [one for one in template if isinstance(one, dict)]
        template = next((one.get("template") for one in named if one.get("name") == "default"), "")
    if template is not None and not isinstance(template, str):
        raise ArtifactCorruptError("chat_template of the model's folder is no text")
    return template or ""


def _said(tokenizer: dict[str, Any], name: str) -> bool | None:
    value = tokenizer.get(name)
    if value is not None and not isinstance(value, bool):
        raise ArtifactCorruptError(f"{name} of the model's folder is neither true nor false")
    return value


def _token(value: Any) -> str:
    """A token's text, which older files wrap."""
    text = value.get("content") if isinstance(value, dict) else value
    if text is not None and not isinstance(text, str):
        raise ArtifactCorruptError("bos_token or eos_token of the model's folder is no text")
    return text or ""


def _read(path: Path) -> dict[str, Any]:
    """A JSON object without a key twice; an empty one without the file."""
    if not path.exists():
        return {}
    try:
        return read_object(_bytes(path))
    except (ValueError, RecursionError) as error:
        why = f"{path.name} is no JSON that can be read in one way alone: {error}"
        raise ArtifactCorruptError(f"{why[:300]}; fetch the model again") from error


def _bytes(path: Path) -> bytes:
    if os.stat(path).st_size > _MAX_JSON_BYTES:
        raise ArtifactCorruptError(f"{path.name} has more than {_MAX_JSON_BYTES} bytes")
    return path.read_bytes()


def _text(path: Path) -> str:
    try:
        return _bytes(path).decode()
    except UnicodeDecodeError as error:
        raise ArtifactCorruptError(f"{path.name} is no UTF-8") from error
