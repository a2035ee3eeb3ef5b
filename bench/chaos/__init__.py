"""Mixed load on a mesh over hosts while one fault after another happens to it."""
