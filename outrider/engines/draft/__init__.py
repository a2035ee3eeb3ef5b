"""Draft models: small models that guess what a target says, made from its vocabulary."""
