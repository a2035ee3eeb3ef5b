"""Sessions over a turn engine, which schedules, caches and samples by itself."""
