"""Files full of text to shards full of token ids, on every core, resumable and reproducible."""
