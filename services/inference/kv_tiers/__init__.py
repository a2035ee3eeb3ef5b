"""KV that comes from outside a session's own computing: one seam, and what its sides share."""
