"""A cache of ids that several processes share, in a Redis that may be slow, full or gone."""
