"""Split GGUF files (NAME-00001-of-00003.gguf and so on), joined to the file that they were before.

As `gguf-split` of llama.cpp writes them, the first part has all fields, and every part some of the
tensors. The joined file has the fields without those about the split, and all tensors in order.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Final, NoReturn

from gguf import GGUF_MAGIC, GGUFValueType

from outrider.errors import ArtifactCorruptError, SourceError
from outrider.models.gguf_file import Extent, GgufLayout, layout_of

_PART: Final = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")
_ABOUT_SPLIT: Final = b"split."
_NUM_TENSORS: Final = b"split.tensors.count"
_ALIGNMENT: Final = b"general.alignment"
_NUMBERS: Final = {
    GGUFValueType.UINT16: "<H",
    GGUFValueType.INT32: "<i",
    GGUFValueType.UINT32: "<I",
    GGUFValueType.UINT64: "<Q",
}
MAX_PARTS: Final = 1024


@dataclass(frozen=True, slots=True)
class JoinedGguf:
    """A file that is written from its parts."""

    header: bytes
    """Up to the first tensor."""
    tensors: tuple[tuple[Path, Extent, int], ...]
    """Part, bytes in it, and zeros behind them, in order."""

    @property
    def num_bytes(self) -> int:
        """Size of the whole file."""
        return len(self.header) + sum(at.end - at.begin + zeros for _, at, zeros in self.tensors)


def is_part(name: str) -> bool:
    """Whether a file of this name is a part of a split one."""
    return _PART.fullmatch(name) is not None


def part_names(first: str) -> tuple[str, ...]:
    """Names of all parts of the split file whose first one has this name, in order; none for
    another name. Raises SourceError for another part than the first."""
    named = _PART.fullmatch(first)
    if named is None:
        return ()
    stem, number, count = named[1], int(named[2]), int(named[3])
    if not 1 <= count <= MAX_PARTS:
        raise SourceError(f"{first} says that there are {count} parts; 1 to {MAX_PARTS} are read")
    names = tuple(f"{stem}-{n:05}-of-{count:05}.gguf" for n in range(1, count + 1))
    if number != 1:
        raise SourceError(f"{first} is part {number} of {count}; name the first, {names[0]}")
    return names


def parts_of(path: Path) -> tuple[Path, ...]:
    """Paths of all parts of the split file whose first one has this path; none for a file of
    another name. Raises SourceError for another part than the first, and for missing ones."""
    parts = tuple(map(path.with_name, part_names(path.name)))
    missing = [part.name for part in parts if not part.is_file()]
    if missing:
        raise SourceError(
            f"{path.name} is part 1 of {len(parts)}, and {', '.join(missing[:8])} "
            "is not beside it; fetch all of them"
        )
    return parts


def joined(parts: tuple[Path, ...]) -> JoinedGguf:
    """Raises ArtifactCorruptError for parts that do not belong together, OSError."""
    layouts = [_layout(part) for part in parts]
    first = layouts[0]
    for number, (part, layout) in enumerate(zip(parts, layouts, strict=True)):
        _check(part, layout, first, number, len(parts))
    fields = [at for name, at in first.fields.items() if not name.startswith(_ABOUT_SPLIT)]
    listed = [
        (part, it) for part, layout in zip(parts, layouts, strict=True) for it in layout.tensors
    ]
    for part, layout in zip(parts, layouts, strict=True):
        at = layout.fields.get(_NUM_TENSORS)
        said = len(listed) if at is None else _number(part, _NUM_TENSORS, at)
        if said != len(listed):
            _refuse(part, f"it says that there are {said} tensors; all parts have {len(listed)}")
    header = bytearray(
        struct.pack("<IIQQ", GGUF_MAGIC, first.version, len(listed), len(fields))
        + b"".join(_bytes(parts[0], at) for at in fields)
    )
    names, offset, tensors = set[bytes](), 0, []
    for part, tensor in listed:
        described = _bytes(part, tensor.description)
        name = described[8 : 8 + int.from_bytes(described[:8], "little")]
        if name in names:
            _refuse(part, f"it has {name.decode()[:100]!r}, which another part has too")
        names.add(name)
        header += described + struct.pack("<Q", offset)
        num_bytes = tensor.data.end - tensor.data.begin
        zeros = -num_bytes % first.alignment
        tensors.append((part, tensor.data, zeros))
        offset += num_bytes + zeros
    header += bytes(-len(header) % first.alignment)
    return JoinedGguf(bytes(header), tuple(tensors))


def read_in_pieces(
    whole: JoinedGguf, piece_bytes: int, finished: Callable[[Path], None] = lambda _: None
) -> Iterator[bytes]:
    """The joined file. Calls `finished` with each part that is not needed any more. Raises
    SourceError for a part that has become shorter, OSError."""
    yield whole.header
    for part, tensors in groupby(whole.tensors, lambda tensor: tensor[0]):
        with part.open("rb") as file:
            for _, at, zeros in tensors:
                file.seek(at.begin)
                left = at.end - at.begin
                while left:
                    piece = file.read(min(left, piece_bytes))
                    if not piece:
                        raise SourceError(f"{part.name} changed while it was read; pull again")
                    left -= len(piece)
                    yield piece
                yield bytes(zeros)
        finished(part)


def _layout(part: Path) -> GgufLayout:
    try:
        return layout_of(part)
    except (ValueError, LookupError, ArithmeticError, MemoryError, struct.error) as error:
        raise ArtifactCorruptError(
            f"{part.name} is not a whole GGUF file ({error}"[:300] + "); fetch it again"
        ) from error


def _check(part: Path, layout: GgufLayout, first: GgufLayout, number: int, count: int) -> None:
    """Raises ArtifactCorruptError for a part that is none, or another one."""
    if (layout.version, layout.alignment) != (first.version, first.alignment):
        _refuse(part, "its version or its alignment is not that of the first part")
    found = {name: layout.fields.get(name) for name in (b"split.no", b"split.count")}
    numbers = [None if at is None else _number(part, name, at) for name, at in found.items()]
    if numbers != [number, count]:
        _refuse(part, f"it says that it is part {numbers[0]} (from 0) of {numbers[1]}")
    if number:
        own = [name for name in layout.fields if not name.startswith((_ABOUT_SPLIT, _ALIGNMENT))]
        if any(name not in first.fields for name in own):
            _refuse(part, "it has fields that the first part lacks")


def _number(part: Path, name: bytes, at: Extent) -> int | None:
    value = _bytes(part, at)[8 + len(name) :]
    kind = int.from_bytes(value[:4], "little")
    form = _NUMBERS.get(GGUFValueType(kind))
    return None if form is None else int(struct.unpack_from(form, value, 4)[0])


def _bytes(part: Path, at: Extent) -> bytes:
    with part.open("rb") as file:
        file.seek(at.begin)
        return file.read(at.end - at.begin)


def _refuse(part: Path, why: str) -> NoReturn:
    raise ArtifactCorruptError(f"{part.name} does not belong to the first part: {why}")
