"""What a GGUF file says of its decoder, for engines that build one from it."""
