"""KV in transit: how small frames are, how fast, what losses cost; what stored prefixes save."""
