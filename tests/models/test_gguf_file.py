"""Files that may be anybody's: only our own errors leave, in bounded memory."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, TokenType
from hypothesis import given
from hypothesis import strategies as st

from outrider.engines.draft_file import read_card
from outrider.engines.openvino.convert import read_facts
from outrider.errors import ArtifactCorruptError, OutriderError, UnsupportedModelError
from outrider.fidelity.reference import Reference
from outrider.models.gguf_file import MAX_ITEMS, content_of, open_gguf
from outrider.models.gguf_vocabulary import read_definition
from tests.models.gguf_files import write_out

READERS = (read_definition, read_card, read_facts, Reference)
MAX_GROWTH_BYTES = 8 << 20
LENGTHS = (0, 1, 255, 1 << 16, 1 << 31, (1 << 32) - 1, 1 << 60, 1 << 63, (1 << 64) - 1)


def whole() -> bytes:
    """A small file with every kind of thing in it."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "m.gguf")
        writer = GGUFWriter(path, "llama")
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_list(["<unk>", "a", "b", "ab"])
        writer.add_token_types([TokenType.UNKNOWN, *[TokenType.NORMAL] * 3])
        writer.add_token_merges(["a b"])
        writer.add_context_length(64)
        writer.add_embedding_length(4)
        writer.add_array("outrider.draft.head_ids", [1, 2])
        writer.add_float32("a.float", 1.5)
        writer.add_bool("a.bool", True)
        writer.add_tensor("output.weight", np.ones((2, 4), np.float32))
        write_out(writer)
        return path.read_bytes()


WHOLE = whole()


def string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def made(*fields: bytes, num_fields: int | None = None, num_tensors: int = 0) -> bytes:
    count = len(fields) if num_fields is None else num_fields
    return struct.pack("<4sIQQ", b"GGUF", 3, num_tensors, count) + b"".join(fields) + bytes(64)


def array(name: bytes, kind: int, count: int, data: bytes = b"") -> bytes:
    head = struct.pack("<IIQ", GGUFValueType.ARRAY, kind, count)
    return string(name) + head + data


UINT8, STRING, ARRAY = GGUFValueType.UINT8, GGUFValueType.STRING, GGUFValueType.ARRAY
FLAT = string(b"a") + struct.pack("<IB", UINT8, 1)
MALFORMED = {
    "many fields": made(num_fields=1 << 63),
    "many tensors": made(num_tensors=1 << 63),
    "an array without end": made(array(b"a", UINT8, 1 << 60)),
    "an array of more than there is": made(array(b"a", UINT8, 1000)),
    "items without end": made(array(b"a", UINT8, MAX_ITEMS + 1, bytes(MAX_ITEMS + 1))),
    "texts without end": made(array(b"a", STRING, 1 << 40)),
    "a long text": made(string(b"a") + struct.pack("<IQ", STRING, 1 << 63)),
    "a long name": made(struct.pack("<Q", (1 << 64) - 1)),
    "a name that is no text": made(string(b"\xff\xfe") + FLAT[9:]),
    "two of one name": made(FLAT, FLAT),
    "a kind that is none": made(string(b"a") + struct.pack("<I", 99)),
    "arrays in arrays": made(string(b"a") + struct.pack("<I", ARRAY) * 3000),
    "no alignment": made(string(b"general.alignment") + struct.pack("<II", 4, 0)),
    "an alignment of another kind": made(string(b"general.alignment") + struct.pack("<IB", 0, 1)),
    "a tensor of many dimensions": made(
        string(b"t") + struct.pack("<I", 1 << 31), num_fields=0, num_tensors=1
    ),
    "a tensor without end": made(
        string(b"t") + struct.pack("<I4QIQ", 4, *[1 << 63] * 4, 0, 0), num_fields=0, num_tensors=1
    ),
    "a tensor beyond the end": made(
        string(b"t") + struct.pack("<IQIQ", 1, 4, 0, 1 << 63), num_fields=0, num_tensors=1
    ),
    "another byte order": struct.pack(">4sIQQ", b"GGUF", 3, 0, 0),
    "another version": struct.pack("<4sIQQ", b"GGUF", 9, 0, 0),
    "nothing": b"",
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gguf") / "m.gguf"


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED)
def test_malformed_files_are_corrupt(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    tracemalloc.start()
    with pytest.raises(ArtifactCorruptError, match=r"m\.gguf is not a whole GGUF file"):
        open_gguf(path)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < MAX_GROWTH_BYTES + len(data)


def test_what_is_read_is_what_the_library_reads(path: Path) -> None:
    arrays = [
        string(f"of {kind.name}".encode())
        + struct.pack("<IIQ", GGUFValueType.ARRAY, kind, 3)
        + bytes(range(size * 3))
        for kind, size in (
            (GGUFValueType.BOOL, 1),
            (GGUFValueType.INT16, 2),
            (GGUFValueType.FLOAT64, 8),
        )
    ]
    empty = [
        string(name) + struct.pack("<IIQ", GGUFValueType.ARRAY, kind, 0)
        for name, kind in ((b"no texts", STRING), (b"no numbers", GGUFValueType.FLOAT64))
    ]
    for data in (WHOLE, made(*arrays, *empty)):
        path.write_bytes(data)
        ours, theirs = open_gguf(path), GGUFReader(path)
        assert list(ours.fields) == list(theirs.fields)
        for name, field in theirs.fields.items():
            read = ours.fields[name]
            assert (read.offset, read.data, read.types) == (field.offset, field.data, field.types)
            assert [it.dtype for it in read.parts] == [it.dtype for it in field.parts]
            assert [it.tolist() for it in read.parts] == [it.tolist() for it in field.parts]
        names = [(it.name, it.data.tobytes()) for it in theirs.tensors]
        assert [(it.name, it.data.tobytes()) for it in ours.tensors] == names


def test_a_text_that_is_none_is_corrupt(path: Path) -> None:
    path.write_bytes(made(string(b"a") + struct.pack("<I", STRING) + string(b"\xff")))
    reader = open_gguf(path)
    assert isinstance(reader, GGUFReader)
    assert content_of(reader, "b") is None
    with pytest.raises(ArtifactCorruptError, match="the field a"):
        content_of(reader, "a")


@pytest.mark.parametrize("name", ["tokens", "token_type", "merges", "model", "pre"])
def test_a_field_of_another_kind_is_corrupt(path: Path, name: str) -> None:
    key = f"tokenizer.ggml.{name}".encode()
    other = b"general.".ljust(len(key), b"x")
    data = WHOLE.replace(string(key), string(other), 1)
    number = string(key) + struct.pack("<II", GGUFValueType.UINT32, 1)
    (num_fields,) = struct.unpack_from("<Q", data, 16)
    data = data[:16] + struct.pack("<Q", num_fields + 1) + number + data[24:]
    path.write_bytes(data + bytes(64))
    with pytest.raises(ArtifactCorruptError, match="something else in the field"):
        read_definition(path)


def test_a_whole_file_is_read(path: Path) -> None:
    path.write_bytes(WHOLE)
    assert read_definition(path).tokens == ["<unk>", "a", "b", "ab"]
    assert read_facts(path).max_context_tokens == 64


@st.composite
def mutations(draw: st.DrawFn) -> bytes:
    """A whole file, changed in a few places: bytes, lengths, what is left out or there twice."""
    data = bytearray(WHOLE)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        kind = draw(st.sampled_from(["byte", "length", "cut", "drop", "copy"]))
        if kind == "byte":
            data[at : at + 1] = bytes([draw(st.integers(0, 255))])
        elif kind == "length":
            length = draw(st.sampled_from(LENGTHS))
            data[at : at + 8] = struct.pack("<Q", length)
        elif kind == "cut":
            del data[at:]
        else:
            piece = data[at : at + draw(st.integers(1, 64))]
            data[at : at + len(piece)] = b"" if kind == "drop" else piece * 2
    return bytes(data)


def fuzz(data: bytes) -> Iterator[OutriderError]:
    """Every reader of GGUF files over these bytes: what leaves them. For fuzzers."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "m.gguf")
        path.write_bytes(data)
        for read in READERS:
            try:
                read(path)
            except OutriderError as error:
                yield error


@given(mutations())
def test_whatever_a_file_holds_only_our_own_errors_leave(data: bytes) -> None:
    assert len(list(fuzz(data))) <= len(READERS)


LEAST_FIELD_BYTES = 8 + 4 + 1
"""Of a name of no bytes, a kind, and the smallest value."""


@given(st.binary(max_size=200), st.integers(1, 3))
def test_bytes_too_few_for_the_fields_they_announce_are_corrupt(rest: bytes, more: int) -> None:
    num_fields = len(rest) // LEAST_FIELD_BYTES + more
    check_corrupt(b"GGUF\x03\0\0\0" + struct.pack("<QQ", 0, num_fields) + rest)


@given(st.binary(max_size=200).filter(lambda data: not data.startswith(b"GGUF")))
def test_bytes_that_do_not_begin_like_a_file_are_corrupt(data: bytes) -> None:
    check_corrupt(data)


def check_corrupt(data: bytes) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder, "m.gguf")
        path.write_bytes(data)
        with pytest.raises(ArtifactCorruptError):
            open_gguf(path)


@pytest.mark.parametrize(
    ("kind", "width", "complaint"),
    [
        (9999, 32, "a tensor of type 9999, which is not known here: it may be newer"),
        (GGMLQuantizationType.Q8_0, 33, "type Q8_0 with rows of 33 values, which are no whole blo"),
    ],
)
def test_tensors_that_cannot_be_read_are_not_called_damaged(
    kind: int, width: int, complaint: str, tmp_path: Path
) -> None:
    tensor = string(b"a") + struct.pack("<IQIQ", 1, width, kind, 0)
    path = tmp_path / "m.gguf"
    path.write_bytes(struct.pack("<4sIQQ", b"GGUF", 3, 1, 0) + tensor + bytes(256))
    with pytest.raises(UnsupportedModelError, match=complaint):
        open_gguf(path)
