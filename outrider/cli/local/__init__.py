"""The mesh on this machine: `outrider up`, `down` and `status`."""
