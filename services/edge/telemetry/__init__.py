"""What an edge measures and logs."""
