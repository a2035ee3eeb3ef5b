"""A router of several processes at ports that follow one another."""
