"""Models of every kind that is claimed, through replicas as `outrider up` starts them: seconds
until one is ready, what its process holds, and whether its replies equal the reference's."""
