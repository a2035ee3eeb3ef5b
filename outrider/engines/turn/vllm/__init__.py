"""vLLM in this process (`AsyncLLM`), which computes in a process of its own."""
