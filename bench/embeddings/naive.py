"""The naive service: each request in turn is tokenized, padded, computed and written as protobuf.

    python -m bench.embeddings.naive FOLDER PORT THREADS

It has the same tokenizer, the same graph on the same engine, and as many threads as ours: what
differs is the pipeline. Requests are one gRPC call each; the reply is `repeated float`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import grpc
import numpy as np
import openvino as ov
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from tokenizers import Tokenizer

from bench.embeddings.load import Vectors
from outrider.engines.embedding import pool
from outrider.engines.openvino.encoder_graph import IDS, MASK, encoder_graph
from outrider.models.embedding_folder import EmbeddingFolder
from outrider.models.store import ModelStore

METHOD: Final = "/naive.Embedder/Embed"
_FIELD: Final = descriptor_pb2.FieldDescriptorProto


def _messages() -> tuple[Any, Any]:
    """Texts, and lists of floats."""
    file = descriptor_pb2.FileDescriptorProto(name="naive.proto", package="naive", syntax="proto3")
    kinds = (
        ("Texts", "texts", _FIELD.TYPE_STRING, ""),
        ("Vector", "values", _FIELD.TYPE_FLOAT, ""),
        ("Vectors", "vectors", _FIELD.TYPE_MESSAGE, ".naive.Vector"),
    )
    for name, field, kind, of in kinds:
        made = file.message_type.add(name=name)
        made.field.add(
            name=field, number=1, label=_FIELD.LABEL_REPEATED, type=kind, type_name=of or None
        )
    known = descriptor_pool.DescriptorPool()
    known.Add(file)
    found = known.FindFileByName("naive.proto")
    texts, vectors = (found.message_types_by_name[name] for name in ("Texts", "Vectors"))
    return message_factory.GetMessageClass(texts), message_factory.GetMessageClass(vectors)


Texts, VectorList = _messages()


class Naive:
    """The four steps."""

    def __init__(self, model: EmbeddingFolder, tokenizer_json: str, threads: int) -> None:
        tokenizer = Tokenizer.from_str(tokenizer_json)
        tokenizer.no_padding()
        tokenizer.enable_truncation(model.facts.max_tokens)
        settings = {"INFERENCE_NUM_THREADS": str(threads), "INFERENCE_PRECISION_HINT": "f32"}
        settings["PERFORMANCE_HINT"] = "LATENCY"
        compiled = ov.Core().compile_model(encoder_graph(model), "CPU", settings)
        self._request: Any = compiled.create_infer_request()
        self._tokenizer = tokenizer
        self._facts = model.facts

    def tokenized(self, texts: Sequence[str]) -> list[list[int]]:
        """Their ids."""
        return [self._tokenizer.encode(text).ids for text in texts]

    def padded(self, tokens: Sequence[Sequence[int]]) -> tuple[Any, Any]:
        """[n, longest] ids, and attention's mask."""
        longest = max(map(len, tokens))
        ids = np.full((len(tokens), longest), self._facts.padding_id, np.int32)
        mask = np.full(ids.shape, -np.inf, np.float32)
        for row, each in enumerate(tokens):
            ids[row, : len(each)] = each
            mask[row, : len(each)] = 0.0
        return ids, mask

    def computed(self, ids: Any, mask: Any, lengths: Sequence[int]) -> Vectors:
        """[n, d]"""
        self._request.infer({IDS: ids, MASK: mask})
        states: Vectors = self._request.get_output_tensor(0).data
        return pool(states, lengths, self._facts.pooling, normalizes=self._facts.normalizes)

    def written(self, vectors: Vectors) -> bytes:
        """The reply."""
        made = VectorList()
        for vector in vectors:
            made.vectors.add().values.extend(vector.tolist())
        data: bytes = made.SerializeToString()
        return data

    def answer(self, asked: bytes) -> bytes:
        """All four of them."""
        tokens = self.tokenized(Texts.FromString(asked).texts)
        ids, mask = self.padded(tokens)
        return self.written(self.computed(ids, mask, [len(each) for each in tokens]))


def vectors_of(data: bytes) -> Vectors:
    """What a client makes of a reply."""
    return np.array([each.values for each in VectorList.FromString(data).vectors], np.float32)


def naive_of(folder: Path, threads: int, store: Path) -> Naive:
    """Of a folder of sentence-transformers."""
    own = ModelStore(store)
    model = EmbeddingFolder(own.ensure(f"dir:{folder}"), own)
    return Naive(model, (folder / "tokenizer.json").read_text(encoding="utf-8"), threads)


def main() -> None:
    flags = argparse.ArgumentParser()
    flags.add_argument("folder", type=Path)
    flags.add_argument("port", type=int)
    flags.add_argument("threads", type=int)
    given = flags.parse_args()
    with tempfile.TemporaryDirectory() as store:
        naive = naive_of(given.folder, given.threads, Path(store))

        def embed(asked: bytes, _: grpc.ServicerContext) -> bytes:
            return naive.answer(asked)

        handler: Any = grpc.unary_unary_rpc_method_handler(embed)
        handlers = grpc.method_handlers_generic_handler("naive.Embedder", {"Embed": handler})
        # One thread: a request at a time.
        server = grpc.server(ThreadPoolExecutor(1), handlers=[handlers])
        server.add_insecure_port(f"127.0.0.1:{given.port}")
        server.start()
        print(json.dumps({"threads": given.threads}), flush=True)
        while True:
            time.sleep(3600)


if __name__ == "__main__":
    main()
