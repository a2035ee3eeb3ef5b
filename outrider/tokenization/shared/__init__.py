"""Ids that several processes know together, in a Redis that may be slow, full or gone."""
