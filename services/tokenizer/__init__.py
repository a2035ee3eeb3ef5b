"""The tokenizer service."""
