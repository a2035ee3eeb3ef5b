"""What the router knows of replicas: health, model, load, distance."""
