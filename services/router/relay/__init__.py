"""Sessions between edges and replicas: their states, their frames, placement and failover."""
