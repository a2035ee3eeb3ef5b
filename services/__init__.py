"""The tiers of the mesh. Services never import each other: they talk through protos."""

import outrider  # noqa: F401 - what it sets has to be set before gRPC is imported
