"""Split GGUF files: joined they are the file that they were, and what does not fit is refused."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader, GGUFWriter

from outrider.errors import ArtifactCorruptError, OutriderError, SourceError, UnsupportedModelError
from outrider.models.gguf_file import content_of, open_gguf
from outrider.models.sources.local import FileSource
from outrider.models.sources.split_gguf import joined, parts_of, read_in_pieces
from outrider.models.store import ModelStore
from tests.models.gguf_files import write_out

TENSORS = {f"blk.{n}.weight": np.arange(n * 7 + 5, dtype=np.float32) + 1000 * n for n in range(7)}


def write(path: Path, tensors: dict[str, Any], **fields: Any) -> Path:
    writer = GGUFWriter(path, "llama")
    if fields.pop("is_first", True):
        writer.add_context_length(64)
        writer.add_token_list(["<unk>", "a"])
    for name, value in fields.items():
        writer.add_uint16(f"split.{name}", value)
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    write_out(writer)
    return path


def write_split(folder: Path, count: int = 3, **changes: dict[str, Any]) -> list[Path]:
    """The tensors in parts; `changes` by number of the part, as part1."""
    parts = []
    for number in range(count):
        mine = dict(list(TENSORS.items())[number::count])
        fields = {"no": number, "count": count, "is_first": not number}
        path = folder / f"m-{number + 1:05}-of-{count:05}.gguf"
        parts.append(write(path, mine, **(fields | changes.get(f"part{number + 1}", {}))))
    return parts


def values_of(path: Path) -> dict[str, Any]:
    return {it.name: np.array(it.data).tolist() for it in GGUFReader(path).tensors}


def test_parts_are_joined_to_the_whole_file(tmp_path: Path) -> None:
    first, *_ = write_split(tmp_path)
    store = ModelStore(tmp_path / "store")
    artifact = store.ensure(f"file:{first}")
    assert values_of(artifact.path) == {name: it.tolist() for name, it in TENSORS.items()}
    reader = open_gguf(artifact.path)
    assert content_of(reader, "split.count") is None
    assert content_of(reader, "tokenizer.ggml.tokens") == ["<unk>", "a"]
    assert content_of(reader, "llama.context_length") == 64
    assert artifact.sha256 == FileSource(first).sha256()
    data = artifact.path.read_bytes()
    assert hashlib.sha256(data).hexdigest() == artifact.sha256
    assert len(data) == joined(parts_of(first)).num_bytes
    order = [name for n in range(3) for name in list(TENSORS)[n::3]]
    assert [tensor.name for tensor in GGUFReader(artifact.path).tensors] == order


def test_a_file_of_one_part_is_a_file_like_any_other(tmp_path: Path) -> None:
    (only,) = write_split(tmp_path, 1)
    assert values_of(only) == {name: it.tolist() for name, it in TENSORS.items()}
    pieces = b"".join(read_in_pieces(joined(parts_of(only)), 16))
    (tmp_path / "whole.gguf").write_bytes(pieces)
    assert values_of(tmp_path / "whole.gguf") == values_of(only)
    assert parts_of(tmp_path / "whole.gguf") == ()


def test_a_part_alone_is_named_as_one(tmp_path: Path) -> None:
    parts = write_split(tmp_path)
    with pytest.raises(SourceError, match=r"part 2 of 3; name the first, m-00001-of-00003\.gguf"):
        parts_of(parts[1])
    renamed = parts[0].rename(tmp_path / "renamed.gguf")
    with pytest.raises(UnsupportedModelError, match=r"renamed\.gguf is one of the 3 parts"):
        open_gguf(renamed)


def test_missing_parts_are_named(tmp_path: Path) -> None:
    first, second, third = write_split(tmp_path)
    second.unlink()
    third.unlink()
    with pytest.raises(
        SourceError, match=r"part 1 of 3, and m-00002.*m-00003-of-00003\..*not besid"
    ):
        ModelStore(tmp_path / "store").ensure(f"file:{first}")


OTHERS = dict(list(TENSORS.items())[:1])


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"part2": {"no": 2}}, r"m-00002-of-00003\.gguf .* that it is part 2 .from 0. of 3"),
        ({"part3": {"count": 4}}, "of 4"),
        ({"part1": {"count": 2}}, "of 2"),
        ({"part2": {"other": 1}}, None),
        ({f"part{n}": {"tensors.count": 7} for n in (1, 2, 3)}, None),
        ({"part3": {"tensors.count": 8}}, r"m-00003.* says that there are 8 tensors; .* have 7"),
    ],
    ids=str,
)
def test_parts_of_another_file_are_refused(
    changes: dict[str, Any], complaint: str | None, tmp_path: Path
) -> None:
    parts = tuple(write_split(tmp_path, **changes))
    if complaint is None:
        assert joined(parts).tensors
        return
    with pytest.raises(ArtifactCorruptError, match=complaint):
        joined(parts)


def test_parts_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    parts = write_split(tmp_path)
    write(parts[1], OTHERS, no=1, count=3, is_first=False)
    with pytest.raises(ArtifactCorruptError, match=r"has 'blk\.0\.weight', which another part has"):
        joined(tuple(parts))
    writer = GGUFWriter(parts[1], "llama")
    writer.add_uint16("split.no", 1)
    writer.add_uint16("split.count", 3)
    writer.add_head_count(4)
    write_out(writer)
    with pytest.raises(ArtifactCorruptError, match="fields that the first part lacks"):
        joined(tuple(parts))


@pytest.mark.parametrize("size", [0, 10, 200])
def test_a_part_that_is_cut_short_is_refused(size: int, tmp_path: Path) -> None:
    parts = write_split(tmp_path)
    parts[2].write_bytes(parts[2].read_bytes()[:size])
    with pytest.raises(OutriderError, match=r"m-00003-of-00003\.gguf is not a whole GGUF file"):
        joined(tuple(parts))
