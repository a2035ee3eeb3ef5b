"""openvino_genai's ContinuousBatchingPipeline, which comes with Outrider's own engine."""

from __future__ import annotations

import sys
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from bench.harness.load import WHOLE_TOKENS, Setup, System
from bench.peers.worker import worker
from outrider.models.vocabulary import Vocabulary


def pipeline(
    model: Path, vocabulary: Vocabulary, setup: Setup, *, lookup_tokens: int = 0
) -> AbstractAsyncContextManager[System]:
    """Start the pipeline on the IR in `model`; `lookup_tokens` above 0 lets it speculate."""
    flags = (
        *("--threads", str(setup.threads), "--lookup-tokens", str(lookup_tokens)),
        *("--chunk-tokens", str(setup.chunk_tokens)),
        *(("--whole-prompts",) if setup.chunk_tokens == WHOLE_TOKENS else ()),
    )
    module = "bench.peers.openvino_pipeline_worker"
    return worker(vocabulary, sys.executable, "-m", module, str(model), *flags)
