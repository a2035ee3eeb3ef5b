"""What a reply costs: `repeated float`, JSON, base64 in JSON, and raw little-endian bytes, written
by a server and read by a client, for the vectors of one engine call."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Final

import msgspec
import numpy as np

from bench.embeddings.load import Vectors
from bench.embeddings.naive import VectorList, vectors_of
from bench.harness import Run, median, time_us
from outrider.codec.vectors import VectorFormat, packed, unpacked
from outrider.v1 import embedding_pb2

_COUNT: Final = 16
_REPEATS: Final = 200
"""Vectors of a call."""


def measure(run: Run, vectors: Vectors) -> None:
    """Adds the table; `vectors` [n, d]."""
    rows = np.ascontiguousarray(np.resize(vectors, (_COUNT, vectors.shape[1])))
    table = run.table(
        f"Cost of a reply of {_COUNT} vectors of {rows.shape[1]} values",
        *("form", "us a vector, written", "read", "bytes a vector", "against repeated float"),
    )
    forms: tuple[tuple[str, Callable[[], bytes], Callable[[bytes], Vectors]], ...] = (
        ("protobuf, repeated float", lambda: _repeated(rows), vectors_of),
        ("JSON, numbers", lambda: _as_numbers(rows), _of_numbers),
        ("JSON, base64 of f32", lambda: _as_base64(rows), _of_base64),
        ("raw f32", lambda: _raw(rows, VectorFormat.F32), _of_raw),
        ("raw f16", lambda: _raw(rows, VectorFormat.F16), _of_raw),
        ("raw i8", lambda: _raw(rows, VectorFormat.I8), _of_raw),
    )
    first = 0.0
    for name, write, read in forms:
        data = write()
        assert read(data).shape == rows.shape, name
        written, found = (
            median(time_us(work, repeats=_REPEATS)) / _COUNT
            for work in (write, lambda read=read, d=data: read(d))
        )
        first = first or written + found
        ratio = first / (written + found)
        table.add(name, round(written, 2), round(found, 2), len(data) // _COUNT, round(ratio, 1))
        run.figures[f"reply_us_{name}"] = round(written + found, 2)


def _repeated(rows: Vectors) -> bytes:
    made = VectorList()
    for row in rows:
        made.vectors.add().values.extend(row.tolist())
    data: bytes = made.SerializeToString()
    return data


def _as_numbers(rows: Vectors) -> bytes:
    return msgspec.json.encode({"data": [row.tolist() for row in rows]})


def _of_numbers(data: bytes) -> Vectors:
    return np.array(json.loads(data)["data"], np.float32)


def _as_base64(rows: Vectors) -> bytes:
    return msgspec.json.encode(
        {
            "data": [
                base64.b64encode(row.astype("<f4", copy=False).tobytes()).decode() for row in rows
            ]
        }
    )


def _of_base64(data: bytes) -> Vectors:
    texts = json.loads(data)["data"]
    return np.stack([np.frombuffer(base64.b64decode(text), "<f4") for text in texts])


def _raw(rows: Vectors, form: VectorFormat) -> bytes:
    data, scales = packed(rows, form)
    return embedding_pb2.Vectors(
        ids=range(len(rows)),
        num_tokens=[50] * len(rows),
        dimensions=rows.shape[1],
        format=embedding_pb2.VectorFormat.ValueType(form),
        data=data,
        scales=scales,
    ).SerializeToString()


def _of_raw(data: bytes) -> Vectors:
    told = embedding_pb2.Vectors.FromString(data)
    return unpacked(told.data, told.scales, told.dimensions, VectorFormat(told.format))
