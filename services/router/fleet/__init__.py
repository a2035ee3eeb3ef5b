"""The replicas that the router knows: health, model, load, round trips. Pure."""
