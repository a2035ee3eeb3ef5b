"""An index of the replicas whose KV caches hold a prompt's prefix. Pure."""
