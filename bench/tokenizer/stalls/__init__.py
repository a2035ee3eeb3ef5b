"""Event loops and short chats while prompts of 100,000 tokens arrive without end: of the front
alone, of a tokenizer service, of an edge."""
