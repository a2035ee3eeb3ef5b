"""The edge's way to the regions: which routers there are, how they are, and which one is next."""
