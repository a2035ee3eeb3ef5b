"""sentence-transformers, in its own environment: FOLDER THREADS."""

import importlib.metadata
import sys

import torch
from by_lines import serve
from sentence_transformers import SentenceTransformer

torch.set_num_threads(int(sys.argv[2]))
model = SentenceTransformer(sys.argv[1], device="cpu")
serve(
    {
        "version": importlib.metadata.version("sentence-transformers"),
        "torch": torch.__version__,
        "threads": int(sys.argv[2]),
        "batch_size": 32,
    },
    lambda texts: model.encode(texts, convert_to_numpy=True, show_progress_bar=False),
)
