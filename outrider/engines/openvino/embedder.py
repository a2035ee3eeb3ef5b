"""The OpenVINO engine that makes vectors of texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import openvino as ov

from outrider.engines.config import Precision
from outrider.engines.embedding import EmbedderInfo, Ids, Vectors, padded_tokens, pool
from outrider.engines.fingerprint import fingerprint_of, probe_ids
from outrider.engines.openvino.compiling import precision_of
from outrider.engines.openvino.embedding_decoder_graph import embedding_decoder_graph
from outrider.engines.openvino.encoder_graph import IDS, MASK, encoder_graph
from outrider.errors import EngineError
from outrider.models.embedding import DecoderShape
from outrider.models.embedding_folder import EmbeddingFolder

NAME: Final = "openvino"
_PROBES: Final = ((6, 24, 135), (2, 3))
"""Tokens of the probes, and the numbers of texts that each is computed among."""


def open_embedders(
    folder: EmbeddingFolder,
    *,
    count: int = 1,
    threads: int = 1,
    precision: Precision = "auto",
) -> tuple[OpenVinoEmbedder, ...]:
    """`count` embedders of `threads` threads each, which share the weights. Blocks for seconds.
    `auto` is float32: vectors are compared with those of other programs, and bf16 changes their
    third digit.

    Raises EngineError, UnsupportedModelError, EngineError on a CPU on which a vector would depend
    on what else is computed, and ConfigError for bf16 on a CPU without it.
    """
    core = ov.Core()
    computed_in = "f32" if precision == "auto" else precision_of(precision, core)
    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": str(count),
        "INFERENCE_NUM_THREADS": str(threads * count),
        "INFERENCE_PRECISION_HINT": computed_in,
        # Both compiled models of a replica would bind their threads to the same cores.
        "ENABLE_CPU_PINNING": "NO",
    }
    try:
        compiled = core.compile_model(_graph(folder), "CPU", settings)
        requests = [compiled.create_infer_request() for _ in range(count)]
    except RuntimeError as error:
        raise EngineError(f"the model cannot be compiled: {error}") from error
    made = tuple(OpenVinoEmbedder(folder, request, computed_in) for request in requests)
    fingerprint = made[0].checked_fingerprint()
    for each in made:  # they run the same compiled model
        each.info = replace(each.info, fingerprint=fingerprint)
    return made


def _graph(folder: EmbeddingFolder) -> Any:
    shape = folder.facts.shape
    if isinstance(shape, DecoderShape):
        return embedding_decoder_graph(folder, shape)
    return encoder_graph(folder)


class OpenVinoEmbedder:
    """One infer request of a compiled encoder."""

    def __init__(self, folder: EmbeddingFolder, request: Any, computed_in: str) -> None:
        """Called by `open_embedders`."""
        self._facts = folder.facts
        self._request = request
        self.info = EmbedderInfo(
            name=NAME,
            precision=computed_in,
            dimensions=self._facts.shape.width,
            max_tokens=self._facts.max_tokens,
            vocabulary_size=self._facts.shape.vocabulary_size,
            fingerprint=b"",
        )

    def embed(self, texts: Sequence[Ids]) -> Vectors:
        """Vectors of texts; see Embedder.embed."""
        lengths = [len(ids) for ids in texts]
        padded = padded_tokens(max(lengths))
        if any(padded_tokens(length) != padded for length in lengths):
            raise EngineError("texts of different lengths are in one call")
        ids = np.full((len(texts), padded), self._facts.padding_id, np.int32)
        mask = np.full((len(texts), padded), -np.inf, np.float32)
        for row, text in enumerate(texts):
            ids[row, : len(text)] = text
            mask[row, : len(text)] = 0.0
        # No token of a decoder sees what is behind it.
        is_decoder = isinstance(self._facts.shape, DecoderShape)
        try:
            self._request.infer({IDS: ids} if is_decoder else {IDS: ids, MASK: mask})
            states: Vectors = self._request.get_output_tensor(0).data
        except RuntimeError as error:
            raise EngineError(f"the engine failed: {error}") from error
        if not np.isfinite(states[:, 0]).all():
            raise EngineError(
                "the engine computed values that are not finite; choose another model"
            )
        return pool(states, lengths, self._facts.pooling, normalizes=self._facts.normalizes)

    def close(self) -> None:
        """Release the request; see Embedder.close."""
        self._request = None

    def checked_fingerprint(self) -> bytes:
        """Fingerprint of probe texts, each computed by itself and among others. Raises EngineError
        if the vectors differ."""
        found: list[Vectors] = []
        lengths, counts = _PROBES
        for length in lengths:
            num_tokens = min(length, self._facts.max_tokens)
            ids = probe_ids(self._facts.shape.vocabulary_size, num_tokens)
            alone = self.embed([ids])
            for count in counts:
                others = [np.roll(ids, shift) for shift in range(1, count)]
                among = self.embed([*others, ids])[-1:]
                if among.tobytes() != alone.tobytes():
                    raise EngineError(
                        "on this CPU a vector depends on what is computed beside it, so the same "
                        "text would have several; report this CPU's model"
                    )
            found.append(alone)
        return fingerprint_of(np.concatenate(found))
