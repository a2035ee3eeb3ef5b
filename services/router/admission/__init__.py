"""Who is let in, when, and where from: tenants' limits, classes, the queue, spilling over. Pure."""
