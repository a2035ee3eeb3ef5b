"""An exact engine in PyTorch, on CPUs and CUDA GPUs: every operation has a fixed shape, so no bit
of a row depends on what else is in its call."""
