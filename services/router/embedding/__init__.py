"""Requests for vectors: their inputs are spread over replicas, and each is answered once."""
