"""Models on disk: the content-addressed store, the vocabulary contract, the chat template."""
