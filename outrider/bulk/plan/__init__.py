"""The plan of a run and its progress: shards, assignments, results, the journal. Pure."""
