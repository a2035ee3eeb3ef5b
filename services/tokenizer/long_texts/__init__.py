"""Long texts over worker processes, on this node and on others."""
