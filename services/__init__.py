"""The tiers of the mesh. Services never import each other: they talk through protos."""
