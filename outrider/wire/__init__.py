"""The border: protobuf messages to dataclasses and back, validated."""
