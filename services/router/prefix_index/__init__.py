"""Which replicas have the KV of which prompt prefixes cached. Pure."""
