"""Replicas of models that embed: queue, tokenizer threads, engines, and the gRPC side."""
