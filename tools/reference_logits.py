"""What a model's file says of a text, computed with numpy alone: its perplexity, and what the model
thinks would follow.

    python -m tools.reference_logits --model smollm2-135m-instruct --text README.md

No engine is involved (outrider/fidelity/reference.py). The text is taken as it is, without a chat
template; `--tokens` bounds it, since attention is computed over all of it at once.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from outrider.fidelity.measure import log_softmax
from outrider.fidelity.reference import Reference
from outrider.models.catalog import DEFAULT_MODEL, lookup
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import load_vocabulary


def main(argv: Sequence[str] | None = None) -> int:
    """Prints both."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default=DEFAULT_MODEL.name, help="a name of the catalogue")
    parser.add_argument("--text", type=Path, required=True, help="a file of UTF-8 text")
    parser.add_argument("--tokens", type=int, default=500, help="read so many of its tokens")
    parser.add_argument("--top", type=int, default=5, help="show so many tokens that may follow")
    arguments = parser.parse_args(argv)
    spec, store = lookup(arguments.model), ModelStore(default_root())
    vocabulary = load_vocabulary(spec, store)
    ids = np.array(vocabulary.encode(arguments.text.read_text("utf-8")), np.int32)
    ids = ids[: arguments.tokens]
    if len(ids) < 2:
        parser.error("the text has fewer than two tokens")
    reference = Reference(store.path(spec.source, sha256=spec.sha256))
    scores = log_softmax(reference.logits(reference.states([ids])[0]))
    loss = -scores[np.arange(len(ids) - 1), ids[1:]].mean(dtype=np.float64)
    print(f"{len(ids)} tokens, perplexity {np.exp(loss):.3f}; what may follow:")
    for token in np.argsort(-scores[-1])[: arguments.top].tolist():
        text = vocabulary.token_bytes(token).decode("utf-8", "replace")
        print(f"{np.exp(scores[-1, token]):7.3f}  {token:6d}  {text!r}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
