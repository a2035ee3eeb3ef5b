"""The paged KV pool: blocks, reference counts, prefix reuse."""
