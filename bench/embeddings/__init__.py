"""Vectors of texts: the pipeline beside the naive one and beside others, on one model and cores."""
