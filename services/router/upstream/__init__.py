"""The shells towards replicas and tokenizers: gRPC streams, subscriptions, probes."""
