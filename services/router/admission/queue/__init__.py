"""The router's queue. Pure."""
