"""`outrider tokenize`."""
