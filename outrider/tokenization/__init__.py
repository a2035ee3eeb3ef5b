"""Text to ids: backends, caches, the pool of threads and processes, rewriting, safe cuts."""
