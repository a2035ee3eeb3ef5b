"""Where sessions come in: admission, the queue before placement, what autoscaling is told."""
