"""What the batches come to: figures, predictions and tables."""
