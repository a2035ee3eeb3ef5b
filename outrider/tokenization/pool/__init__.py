"""The tokenization pool: cache, threads, other processes and a last resort, tried in this order."""
