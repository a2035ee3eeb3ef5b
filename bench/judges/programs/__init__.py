"""Programs that an interpreter of a judge's own environment runs: nothing of this project is
imported in them."""
