"""Connections to replicas and tokenizers: gRPC streams, KV cache events, load, health, probes."""
