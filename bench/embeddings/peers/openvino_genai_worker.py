"""openvino_genai.TextEmbeddingPipeline, in its own environment: FOLDER OF THE IR, THREADS."""

import importlib.metadata
import pathlib
import sys

import numpy as np
import openvino as ov
import openvino_genai
import openvino_tokenizers
import transformers
from by_lines import serve

folder = pathlib.Path(sys.argv[1])
tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
ov.save_model(openvino_tokenizers.convert_tokenizer(tokenizer), folder / "openvino_tokenizer.xml")
config = openvino_genai.TextEmbeddingPipeline.Config()
config.pooling_type = openvino_genai.TextEmbeddingPipeline.PoolingType.MEAN
config.normalize = True
config.max_length = 512
pipeline = openvino_genai.TextEmbeddingPipeline(
    folder,
    "CPU",
    config,
    INFERENCE_NUM_THREADS=int(sys.argv[2]),
    INFERENCE_PRECISION_HINT="f32",
)
serve(
    {
        "version": importlib.metadata.version("openvino-genai"),
        "threads": int(sys.argv[2]),
        "precision": "f32",
    },
    lambda texts: np.array(pipeline.embed_documents(texts), np.float32),
)
