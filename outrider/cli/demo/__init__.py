"""`outrider demo`: what Outrider is for, seen in a minute on a mesh of the demo's own."""
