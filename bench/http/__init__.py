"""What the HTTP door costs and carries: beside our own protocol, and beside llama.cpp's server."""
