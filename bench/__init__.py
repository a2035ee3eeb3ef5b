import outrider  # noqa: F401 - what it sets has to be set before gRPC is imported
