"""A worker of tokenizer services on a node of its own: `outrider serve tokenizer-worker`."""
