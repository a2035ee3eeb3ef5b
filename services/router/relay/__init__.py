"""The relay: a pure session table, and the switch that moves frames by it."""
