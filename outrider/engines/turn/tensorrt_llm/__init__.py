"""TensorRT-LLM by its LLM API, with its own scheduler, graphs and sampling. Never run on a GPU by
us."""
