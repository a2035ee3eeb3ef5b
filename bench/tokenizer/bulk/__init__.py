"""Bulk tokenization: `outrider tokenize` with its shards written, beside the packages alone."""
