"""How many replicas there should be, for an autoscaler to read. Pure."""
