"""The front: cache, threads, other processes and the last resort before a tokenizer."""
