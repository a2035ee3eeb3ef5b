"""The GPU engine: TensorRT-LLM, one request per slice. Its authors have not run it on a GPU."""
