"""From a model file's metadata to an exact tokenizer and its digest."""
