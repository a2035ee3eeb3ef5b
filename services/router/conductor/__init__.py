"""How many replicas there should be: figures an autoscaler reads. Pure."""
