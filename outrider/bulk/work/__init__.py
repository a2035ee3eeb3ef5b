"""What one worker does: read a shard's texts, encode them, write the shard."""
