"""The CPU engine: OpenVINO with paged attention over a KV pool of ours."""
