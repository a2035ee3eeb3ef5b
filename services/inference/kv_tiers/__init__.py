"""KV that comes from outside a session's own computing: one seam, and the code that its sides
share."""
