"""Where sessions come in: admission, the queue before placement, what is told to the conductor."""
