"""What the HTTP door carries, beside llama.cpp's server."""
