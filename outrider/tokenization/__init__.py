"""Tokenization at any size: where a long text may be cut, and what stands before a tokenizer."""
