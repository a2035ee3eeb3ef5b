"""The inference service: sessions, scheduler, paged KV and engines."""
