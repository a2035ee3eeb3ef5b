"""What is to be done, decided before anything is: sources, slices, shards, and what is left."""
