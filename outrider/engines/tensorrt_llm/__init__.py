"""The GPU engine: TensorRT-LLM, one request per round. Its authors have not run it on a GPU."""
